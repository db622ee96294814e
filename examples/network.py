"""
A network with FedLMO
=====================

FedLMO trains networks by oracle steps, each layer inside a spectral ball: no layer can stretch its
input by more than the radius of its ball. Clients send averaged gradients beside their atoms, so
their owners must allow that.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import fedfw
from fedfw.data import load_data, partition

data = load_data("digits")
parts = partition("dirichlet:0.1", data.train, clients=20, classes=10, seed=0)
torch.manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
problem = fedfw.Problem(
    network,
    nn.functional.cross_entropy,
    [data.train.take(part) for part in parts],
    test=data.test.take(),
)

# %%
# ``LayerBalls(2)`` chooses a ball for each parameter. Five of the 20 clients take part in a round,
# with five local steps on minibatches. FedAvg has the same clients, rounds and gradients, and the
# step size that gave it the best test accuracy of 0.03, 0.1, 0.3 and 1; nothing was tuned for
# FedLMO.

options = {"rounds": 40, "participation": 5, "local_steps": 5, "batch_size": 32, "eval_every": 5}
sets = fedfw.LayerBalls(2.0)
runs = {
    "FedLMO": fedfw.simulate(problem, fedfw.FedLMO(sets), **options),
    "FedAvg": fedfw.simulate(problem, fedfw.FedAvg(sets, lr=0.3), **options),
}

figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, run in runs.items():
    seen = [record for record in run.history if record.accuracy is not None]
    axis.plot([record.round for record in seen], [record.accuracy for record in seen], label=name)
    print(f"{name}: test accuracy {seen[-1].accuracy:.3f}")
axis.set(xlabel="round", ylabel="test accuracy")
axis.legend()
plt.show()

# %%
# The constraint holds for every model of the run, also for the last one.

for name, parameter in runs["FedLMO"].model.named_parameters():
    if parameter.ndim == 2:
        print(f"{name}: largest singular value {torch.linalg.matrix_norm(parameter, 2):.3f}")
