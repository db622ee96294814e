"""
Compressed exchange beside atoms
================================

Atoms are not the only way to save bytes. If the server may see gradients, clients can send them
compressed: only the k largest entries of how the gradient *changed* (EF21, a form of error
feedback). This example puts three ways of exchange beside each other on the same l1 ball: residual
against the bytes that all clients sent up. The residual is the share of the way from the start to
the optimum that is left.
"""

import matplotlib.pyplot as plt

import fedfw

problem = fedfw.load_problem("digits", clients=10, partition="labels:3")
ball = fedfw.L1Ball(30.0)
optimum = fedfw.solve(problem, ball)
methods = {
    "atoms (FedFW+)": fedfw.FedFWPlus(ball, momentum=0.9),
    "gradients, top 16 (EF21)": fedfw.FedPGD(ball, compress="topk:16"),
    "gradients, dense": fedfw.FedPGD(ball),
}

# %%
# ``history`` counts the bytes of each round as they would travel: real encodings, not estimates.

figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
for name, algorithm in methods.items():
    run = fedfw.simulate(problem, algorithm, rounds=100, eval_every=2)
    sent, up, residuals = 0, [], []
    for record in run.history:
        sent += record.bytes_up
        if record.loss is not None:
            up.append(sent / 1e3)
            residuals.append(optimum.residual(record.loss))
    axis.loglog(up, residuals, label=name)
    print(f"{name:25s} residual {residuals[-1]:.3f} after {up[-1]:8.1f} kB up")
axis.set(xlabel="kB sent up, all clients", ylabel="residual")
axis.grid(alpha=0.3)
axis.legend()
plt.show()

# %%
# What the server sees differs, too: an atom tells one coordinate and a sign, compressed gradients
# add up to the client's gradient. ``fedfw advise`` weighs bytes, rounds and what may be seen, and
# names a method.
