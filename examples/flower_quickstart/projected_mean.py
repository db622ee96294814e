"""A constraint for plain training: Flower's own FedAvg, whose mean is projected onto the set.

Replace ``FedAvg()`` in the app's ``server_app.py`` by ``ProjectedFedAvg("l1:30", global_model)``;
clients stay as they are.

Limits: only the model between rounds lies in the set; clients leave it in their steps. No atoms
travel but whole models. Nothing is certified: with several local steps the end is in general not
the optimum on the set. The set needs a projection, and buffers are not constrained.
"""

import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

import fedfw


class ProjectedFedAvg(FedAvg):
    """FedAvg whose model is moved to the nearest point of a set after every round."""

    def __init__(self, constraint, model, **options):
        super().__init__(**options)
        self.D = fedfw.parse_set(constraint).bind(model)
        self.shapes = {name: p.shape for name, p in model.named_parameters()}

    def aggregate_train(self, server_round, replies):
        """Aggregate as FedAvg does, and project all parameters together."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None:
            return None, metrics
        state = arrays.to_torch_state_dict()
        mean = torch.cat([state[name].reshape(-1) for name in self.shapes])
        pieces = self.D.project(mean).split([shape.numel() for shape in self.shapes.values()])
        for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True):
            state[name] = piece.reshape(shape)
        return ArrayRecord(state), metrics
