"""
Constraint sets, their atoms and their bytes
============================================

For a direction g, the linear minimization oracle of a set answers with the extreme point s of the
set that has the least inner product with g. fedfw calls that point an *atom*. This example draws
the oracle's answers in the plane, and counts the bytes that an atom takes on the wire.
"""

import matplotlib.pyplot as plt
import torch

import fedfw

# %%
# On a polytope few atoms answer for all directions. On a round ball every direction has its own.

sets = {
    "l1 ball": fedfw.L1Ball(1.0),
    "l2 ball": fedfw.L2Ball(1.0),
    "linf ball": fedfw.LinfBall(1.0),
    "simplex": fedfw.Simplex(1.0),
}
angles = torch.linspace(0, 2 * torch.pi, 33)[:-1] + 0.05
directions = torch.stack([angles.cos(), angles.sin()], dim=1)  # (32, 2)
figure, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained")
for axis, (name, constraint) in zip(axes, sets.items(), strict=True):
    atoms = constraint.lmo(directions, batch=True).dense()  # the first axis is the client axis
    for g, s in zip(directions, atoms, strict=True):
        axis.plot([-1.6 * g[0], s[0]], [-1.6 * g[1], s[1]], color="0.8", lw=0.8, zorder=1)
    axis.scatter(*(-1.6 * directions.T), s=6, color="0.6")
    axis.scatter(*atoms.T, s=40, color="C3", zorder=2)
    count = len(torch.unique(atoms, dim=0))
    axis.set(title=f"{name}: {count} atoms", aspect="equal", xticks=[], yticks=[])
plt.show()

# %%
# Grey points are the directions -g of 32 clients, red points are the atoms that they send. An atom
# of a polytope takes as many bits as it needs to be told from the other vertices; an atom of a
# round ball takes as many numbers as the model has.

torch.manual_seed(0)
g = torch.randn(28, 28)
print(f"a matrix of {g.numel()} numbers takes {4 * g.numel()} bytes; its atom takes")
for text in ("l1:10", "ksparse:k=10,r=1", "linf:1", "l2:10", "nuclear:10", "birkhoff"):
    atom = fedfw.parse_set(text).lmo(g)
    print(f"  {text:18s} {len(atom.to_bytes()):5d} bytes")

# %%
# The server trusts no bytes. It decodes them for the set that it knows, and refuses whatever is no
# atom of it.

ball = fedfw.L1Ball(10.0)
data = ball.lmo(g).to_bytes()
print(fedfw.Atom.from_bytes(data, ball, g.shape).dense().abs().sum())
try:
    fedfw.Atom.from_bytes(data + b"!", ball, g.shape)
except fedfw.AtomError as error:
    print(f"refused: {error}")
