"""Atoms for plain training: Flower's own FedAvg, and `fedfw.optim.LMO` in the client.

Put ``train`` into the app's ``task.py``; nothing else changes. Every client's model stays in the
set, and so does their mean, because the set is convex.

Limits: whole models travel, as with SGD. Nothing is certified. Clients drift apart in their local
steps as in FedAvg. The optimizer's momentum begins anew in every round. The start is moved into the
set by every client alone.
"""

import torch

import fedfw


def train(net, trainloader, epochs, lr, device):
    """Train the model on the training set, within the l2 ball of radius 10."""
    net.to(device)
    criterion = torch.nn.CrossEntropyLoss().to(device)
    optimizer = fedfw.optim.LMO(net, "l2:10", lr=lr)
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
