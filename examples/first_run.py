"""
The digits with FedFW+
======================

Ten clients hold three kinds of digits each, and together they learn to tell all ten. The model must
stay inside an l2 ball of radius 10. Each client sends one extreme point of that ball a round, and
never its data or a gradient.
"""

import matplotlib.pyplot as plt
import torch

import fedfw

problem = fedfw.load_problem("digits", model="mclr", clients=10, partition="labels:3")
algorithm = fedfw.FedFWPlus(fedfw.L2Ball(10.0), momentum=0.9)
run = fedfw.simulate(problem, algorithm, rounds=100, eval_every=10)

# %%
# A record is kept of every round. Those that were evaluated have the loss, the test accuracy and
# the Frank-Wolfe gap: for convex losses the loss is at most the gap above the optimum.

evaluated = [record for record in run.history if record.loss is not None]
print("round    loss  accuracy     gap")
for record in evaluated:
    print(f"{record.round:5d} {record.loss:7.3f} {record.accuracy:9.3f} {record.gap:7.3f}")

# %%
# The set is a hard constraint: the trained model lies in the ball.

norm = torch.cat([p.detach().flatten() for p in run.model.parameters()]).norm()
print(f"norm of the trained model: {norm:.3f}, at most 10")

# %%
# The shaded band is the proven range of the optimum. The central solver, which sees all the data,
# ends inside of it.

optimum = fedfw.solve(problem, fedfw.L2Ball(10.0))
rounds = [record.round for record in evaluated]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
left.plot(rounds, [record.loss for record in evaluated], label="FedFW+")
bounds = [record.lower_bound for record in evaluated]
left.fill_between(rounds, bounds, [record.loss for record in evaluated], alpha=0.15)
left.axhline(optimum.value, color="black", lw=1, ls="--", label="optimum")
left.set(title="training loss", xlabel="round", ylim=(0, None))
left.legend()
right.plot(rounds, [record.accuracy for record in evaluated])
right.set(title="test accuracy", xlabel="round")
plt.show()
