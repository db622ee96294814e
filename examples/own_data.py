"""
Your own data
=============

Three clinics measured 30 variables of their patients, of which five matter for the outcome. Each
clinic has its own number of patients, and its own way of measuring. A sparse model is wanted that
serves all of them: logistic regression whose coefficients lie in an l1 ball.

The data are drawn here. Replace ``clinic`` by whatever reads yours: a client is a pair of tensors
(inputs, targets), or a torch dataset.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import fedfw

generator = np.random.default_rng(0)
truth = np.zeros(30)
truth[[2, 7, 11, 19, 26]] = [2.0, -1.5, 1.5, -2.0, 1.0]


def clinic(patients: int, shift: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (patients, 30) and outcomes 0 or 1, (patients, 1)."""
    x = generator.normal(shift, 1.0, size=(patients, 30))
    y = generator.random(patients) < 1 / (1 + np.exp(-(x - shift) @ truth))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]


clinics = [clinic(400, -0.5), clinic(150, 0.0), clinic(80, 0.5)]
model = torch.nn.Linear(30, 1)
torch.nn.init.zeros_(model.weight)
torch.nn.init.zeros_(model.bias)
problem = fedfw.Problem(
    model,
    torch.nn.functional.binary_cross_entropy_with_logits,
    clients=clinics,
    test=clinic(1000, 0.0),
    weights=[400, 150, 80],  # a clinic counts by its patients
)

# %%
# The radius of the ball decides how sparse the model is. Anchored FedFW shares sums of gradients
# now and then, and the run ends when its loss is proven to be within 0.01 of the optimum.

run = fedfw.simulate(
    problem, fedfw.FedFWAnchored(fedfw.L1Ball(6.0)), rounds=200, eval_every=10, tol=0.01
)
last = run.history[-1]
print(f"{len(run.history)} rounds, {run.stopped}")
print(f"loss {last.loss:.3f}, and the optimum is proven to be at least {run.lower_bound:.3f}")
print(f"test accuracy {last.accuracy:.3f}, {run.history.total('bytes_up') / 1e3:.1f} kB up")

# %%
# The model finds the five variables.

found = run.model.weight.detach()[0].numpy()
print("largest coefficients:", sorted(np.argsort(-np.abs(found))[:5].tolist()))
figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
axis.stem(
    np.arange(30) - 0.15, truth, linefmt="0.7", markerfmt="o", basefmt=" ", label="drawn from"
)
axis.stem(np.arange(30) + 0.15, found, linefmt="C0", markerfmt="C0o", basefmt=" ", label="found")
axis.set(xlabel="variable", ylabel="coefficient")
axis.legend()
plt.show()
