"""FedAvg in pfl-research: one full-batch step of SGD a client, everyone in every round."""

from __future__ import annotations

import itertools
import types

import torch
import torch.nn.functional as nnf
from common import Watch, data, module, task
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

path, spec, out = task()
inputs, targets = data(path)
net = module(spec)


def loss(
    self: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, eval: bool = False
) -> torch.Tensor:
    return nnf.cross_entropy(self(x), y)


net.loss = types.MethodType(loss, net)
net.metrics = types.MethodType(lambda self, x, y, eval=True: {}, net)
model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
users = itertools.cycle(range(len(inputs)))
datasets = [
    Dataset(raw_data=[x, y], user_id=str(i))
    for i, (x, y) in enumerate(zip(inputs, targets, strict=True))
]
federated = FederatedDataset(lambda i: datasets[i], lambda: next(users))
watch = Watch()


class Marks(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        watch.mark()
        return False, Metrics()


FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=spec["rounds"],
        evaluation_frequency=10**9,
        train_cohort_size=len(inputs),
        val_cohort_size=0,
    ),
    backend=SimulatedBackend(training_data=federated, val_data=federated),
    model=model,
    model_train_params=NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=spec["lr"], local_batch_size=None
    ),
    model_eval_params=NNEvalHyperParams(local_batch_size=None),
    callbacks=[Marks()],
)
watch.report(out, torch.cat([p.detach().flatten() for p in net.parameters()]))
