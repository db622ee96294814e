"""A first run: ten clients with three digits each learn to tell all ten, inside an l2 ball.

python examples/first_run.py
"""

import torch

import fedfw

problem = fedfw.load_problem("digits", model="mclr", clients=10, partition="labels:3")
algorithm = fedfw.FedFWPlus(fedfw.L2Ball(20.0), momentum=0.9)
run = fedfw.simulate(problem, algorithm, rounds=100, eval_every=10)

print("round    loss  accuracy     gap")
for record in run.history:
    if record.loss is not None:
        print(f"{record.round:5d} {record.loss:7.3f} {record.accuracy:9.3f} {record.gap:7.3f}")
norm = torch.cat([p.detach().flatten() for p in run.model.parameters()]).norm()
print(f"norm of the trained model: {norm:.3f}, at most 20")
