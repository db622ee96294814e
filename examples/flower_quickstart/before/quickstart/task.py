"""quickstart: a Flower / PyTorch app."""

from functools import partial

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

# Softmax regression on the digits of scikit-learn, which need no download
Net = partial(nn.Linear, 64, 10)


def load_data(partition_id, num_partitions):
    """Load the training and the test data of a partition."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    images = images[partition_id::num_partitions]
    labels = labels[partition_id::num_partitions]
    cut = len(images) * 4 // 5
    train_data = TensorDataset(images[:cut], labels[:cut])
    test_data = TensorDataset(images[cut:], labels[cut:])
    return DataLoader(train_data, batch_size=32, shuffle=True), DataLoader(test_data, 32)


def train(net, trainloader, epochs, lr, device):
    """Train the model on the training set."""
    net.to(device)
    criterion = torch.nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net, testloader, device):
    """Validate the model on the test set."""
    net.to(device)
    criterion = torch.nn.CrossEntropyLoss()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images.to(device))
            loss += criterion(outputs, labels.to(device)).item()
            correct += (outputs.argmax(1) == labels.to(device)).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)
