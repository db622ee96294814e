"""
Anchored FedFW and its certificate
==================================

How good is the model, if nobody may see all the data? For convex losses every round proves a lower
bound on the best loss in the set. The loss itself is an upper bound, so the optimum lies between
the two. Here clients differ much, which keeps FedFW+ away from the optimum. Anchored FedFW now and
then shares a sum of all clients' gradients, and then both bounds close in on the optimum.
"""

import matplotlib.pyplot as plt

import fedfw

problem = fedfw.load_problem("digits", clients=10, partition="labels:3")
constraint = fedfw.L1Ball(30.0)
runs = {
    "FedFW+": fedfw.simulate(
        problem, fedfw.FedFWPlus(constraint, momentum=0.9), rounds=100, eval_every=5
    ),
    "anchored FedFW": fedfw.simulate(
        problem, fedfw.FedFWAnchored(constraint, momentum=0.9), rounds=100, eval_every=5
    ),
}

# %%
# ``lower_bound`` is the best bound so far. Nothing but the clients' answers and losses was needed
# for it.

for name, run in runs.items():
    last = run.history[-1]
    print(
        f"{name:15s} loss {last.loss:.3f}, proven: the optimum is at least {last.lower_bound:.3f}"
    )
    print(
        f"{'':15s} {run.history.total('bytes_up') / 1e3:.1f} kB up, {run.dense_sums} sums of gradients"
    )

# %%
# A solver that sees all the data confirms it: the optimum lies between the bounds.

optimum = fedfw.solve(problem, constraint)
print(
    f"the central optimum is {optimum.value:.3f}, proven to {optimum.value - optimum.lower_bound:.4f}"
)
assert all(run.lower_bound <= optimum.value <= run.history[-1].loss for run in runs.values())

figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
for i, (name, run) in enumerate(runs.items()):
    seen = [record for record in run.history if record.loss is not None]
    rounds = [record.round for record in seen]
    axis.plot(rounds, [record.loss for record in seen], color=f"C{i}", label=f"{name}: loss")
    bounds = [record.lower_bound for record in seen]
    axis.plot(rounds, bounds, color=f"C{i}", ls=":", label=f"{name}: lower bound")
axis.axhline(optimum.value, color="black", lw=1, ls="--", label="optimum")
axis.set(xlabel="round", ylabel="training loss", ylim=(0, 2.4))
axis.legend(ncols=2, fontsize="small")
plt.show()

# %%
# ``fedfw.simulate(..., tol=0.1)`` ends a run as soon as its loss is proven to be within 0.1 of the
# optimum.
