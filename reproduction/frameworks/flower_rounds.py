"""FedAvg in Flower's simulation: real messages between a server and clients that Ray runs."""

from __future__ import annotations

import logging
import os

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))

import torch
import torch.nn.functional as nnf
from common import Watch, data, module, task
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

logging.getLogger("flwr").setLevel(logging.ERROR)
path, spec, out = task()
everyone = len(data(path)[0])
start = [p.detach().numpy() for p in module(spec).parameters()]
watch, last = Watch(), []


class Client(NumPyClient):
    def __init__(self, number: int) -> None:
        inputs, targets = data(path)  # a worker reads them once: they do not travel
        self.x, self.y = inputs[number], targets[number]

    def fit(self, parameters, config):
        torch.set_num_threads(1)
        net = module(spec)
        with torch.no_grad():
            for p, value in zip(net.parameters(), parameters, strict=True):
                p.copy_(torch.from_numpy(value.copy()))
        optimizer = torch.optim.SGD(net.parameters(), spec["lr"])
        nnf.cross_entropy(net(self.x), self.y).backward()
        optimizer.step()
        return [p.detach().numpy() for p in net.parameters()], len(self.x), {}


class Marked(FedAvg):
    def aggregate_fit(self, server_round, results, failures):
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        if failures:
            raise RuntimeError(failures[0])
        last[:] = parameters_to_ndarrays(parameters)
        watch.mark()
        return parameters, metrics


def client_fn(context: Context):
    return Client(int(context.node_config["partition-id"])).to_client()


def server_fn(context: Context) -> ServerAppComponents:
    strategy = Marked(
        fraction_evaluate=0.0,
        min_fit_clients=everyone,
        min_available_clients=everyone,
        initial_parameters=ndarrays_to_parameters(start),
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=spec["rounds"]))


run_simulation(
    server_app=ServerApp(server_fn=server_fn),
    client_app=ClientApp(client_fn=client_fn),
    num_supernodes=everyone,
    backend_config={
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": os.cpu_count()},
    },
)
watch.report(out, torch.cat([torch.from_numpy(value).flatten() for value in last]))
