"""The public way to state a federated problem."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from fedfw.notebook import html_card
from fedfw.problems.adapters import split_inputs, take_logits
from fedfw.problems.base import ClientLosses, normalised_weights
from fedfw.problems.checks import (
    fit_targets,
    mixes_samples,
    trained_parameters,
    tried_clients,
    validate_fit,
    validate_mean,
    validate_model,
)
from fedfw.problems.closed_forms import NOT_SPARSE, fastest_losses
from fedfw.problems.completion import MatrixCompletion
from fedfw.problems.composed import SeparateLosses, SplitLosses, own_clients, size_of
from fedfw.problems.digest import digest_of
from fedfw.problems.evaluation import Test, evaluate
from fedfw.problems.generated import FunctionLosses, GeneratedLosses, Make
from fedfw.problems.glm import family_of, validate_glm_targets
from fedfw.problems.known_losses import KnownLoss, LossFunction, Per, floor_of, known_loss
from fedfw.problems.modules import ModelAndLoss, ModuleLosses, flatten, with_parameters
from fedfw.problems.objective import Objective
from fedfw.problems.samples import (
    agree,
    batch_size_of,
    first_samples,
    in_dtype,
    lend_samples,
    read_samples,
    tried,
)
from fedfw.problems.scores import is_plain
from fedfw.problems.stacks import Samples, StackedLosses
from fedfw.problems.structure import declared_convex, linear_layer, softmax_classes
from fedfw.problems.survival import likelihood_of, ties_of, validate_event_times
from fedfw.ranks import ALONE, Ranks
from fedfw.sets.base import shapes_of
from fedfw.terminal import shortened


class Problem(Objective):
    """A model, a loss and clients with their own data: min over x of F(x) = sum_i w_i f_i(x).

    Parameters
    ----------
    model
        Any module whose outputs depend on its parameters and inputs alone: without dropout, and
        without buffers that it changes. It is copied, never changed; its parameters are the start.
    loss
        ``loss(outputs, targets)``, a mean over samples. Losses of `torch.nn` and their functions
        are honoured with class weights, ignored classes and label smoothing: f_i is exactly the
        loss of all of client i's samples, and that of a minibatch is torch's formula on the
        minibatch. A loss of one's own is tried on a few samples.
    clients
        One pair (inputs, targets) of tensors, arrays, frames or sparse matrices, or one torch
        dataset or loader a client; sizes may differ. Texts as targets become class numbers, of
        which ``class_names`` has the texts.
    test
        A pair of tensors or a dataset to measure test loss and accuracy on.
    weights
        ``"equal"`` (the default), ``"samples"`` (by their numbers of samples), or positive numbers,
        one a client; scaled to sum to 1.
    convex
        Whether every f_i is convex in the parameters. None: the module's own ``convex`` attribute
        where it has one; a single linear layer and matrix completion are with a loss of torch that
        is convex in the outputs (cross-entropy, logistic, squared, absolute, Huber's, ...), and not
        known to be with others; a module with hidden layers is not.
    l2
        Adds l2/2 ||x||^2 to every client's loss; the test loss is without it.
    per
        ``"client"`` for a loss of all of a client's samples together that is no mean over them,
        such as a Cox likelihood: clients are then never split or padded, and minibatches and
        privacy are refused. Models that mix samples, such as BatchNorm without running statistics,
        are treated in the same way, and so is `cox_loss`.
    test_owners
        (m,) whose each of the m test samples is: concordance is then given for each of them, too.
    ranks
        The processes among which clients and test samples are divided (`fedfw.join_ranks`). Every
        rank is given the same clients and reads the data of its own: those of a torch dataset are
        not looked at by the others.
    mixed
        Whether a GPU multiplies in bfloat16 for the gradients of a network, with convolutions
        compiled by torch: about twice as fast, with losses and gradients that are off by about a
        hundredth. Nothing changes for linear layers, on a CPU, for test data, certificates and
        private gradients.
    separate
        Whether every client's gradient is worked out by itself, as a deployed client does it. A
        simulation then has the bits of the deployment for every model and all sizes of clients.
        Otherwise clients of similar size share calls, which is faster where they are many and
        small, and rounds differently: docs/deployment.md says for which models.
    held_out
        The share of its samples that each client lends to be tested on, instead of ``test``.

    Examples
    --------
    >>> import torch, fedfw
    >>> clients = [(torch.randn(20, 4), torch.randint(3, (20,))) for _ in range(5)]
    >>> problem = fedfw.Problem(torch.nn.Linear(4, 3), torch.nn.functional.cross_entropy, clients)
    >>> problem.n, len(problem.start), problem.convex
    (5, 15, True)
    >>> problem
    Problem(Linear model, 5 clients, 100 training samples, 15 parameters, convex losses)

    A loss that compares the samples of a client with each other:

    >>> def spread(outputs, targets):
    ...     return (outputs - outputs.mean() - targets).square().mean()
    >>> clients = [(torch.randn(m, 4), torch.randn(m, 1)) for m in (9, 5)]
    >>> fedfw.Problem(torch.nn.Linear(4, 1), spread, clients, per="client").losses.per
    'client'
    """

    test_data: tuple[Tensor, Tensor] | None = None
    test_owners: Tensor | None = None
    tests_lent: bool = False
    tests_split: bool = False
    """True if each rank has a share of the test data."""
    test_digest: str = "none"
    """Of the whole test data, where they are divided among ranks."""
    class_names: tuple[str, ...] = ()
    """The texts that class numbers stand for."""
    columns: tuple[str, ...] = ()
    """The names of a frame's inputs."""
    batch_size: int | None = None
    """That of data loaders, where these are given."""
    known: KnownLoss | None = None
    floor: float | None = None
    """A number that F is never below, where one is known."""
    classes: int | None = None
    """Of a softmax regression."""
    convex: bool | None
    """True if every f_i is known to be convex, False if it is known that not all are."""
    l2: float = 0.0
    mixed: bool = False
    separate: bool = False
    remake: Callable[..., Problem] | None = None
    """Makes the same problem with test data that clients lend."""

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        clients: Sequence[Any],
        test: Any = None,
        weights: Sequence[float] | Tensor | str | None = None,
        convex: bool | None = None,
        l2: float = 0.0,
        per: Per = "sample",
        test_owners: Tensor | None = None,
        ranks: Ranks = ALONE,
        mixed: bool = False,
        separate: bool = False,
        held_out: float = 0.0,
    ) -> None:
        """Check the model and every client's samples, and choose the losses that evaluate them
        fastest.
        """
        if per not in ("sample", "client"):
            raise ValueError(f"per={per!r}, expected 'sample' or 'client'")
        validate_model(model)
        if not (math.isfinite(l2) and l2 >= 0):
            raise ValueError(f"l2={l2}, expected a number of at least 0")
        self.model = copy.deepcopy(model)
        self.loss = loss
        self.l2 = l2
        self.mixed = mixed
        self.separate = separate
        self.ranks = ranks
        self.start = flatten(trained_parameters(self.model))
        self.shapes = shapes_of(self.model)
        if not len(clients):
            raise ValueError("clients=[], expected the data of at least one client")
        sizes = [size_of(data) for data in clients]
        own_numbers = own_clients(ranks, sizes)
        if held_out and (test is not None or ranks.size > 1):
            raise ValueError(
                f"held_out={held_out}: expected no test data beside it, and one process"
            )
        if not held_out and ranks.size == 1:
            self.remake = partial(
                Problem,
                model,
                loss,
                clients,
                weights=weights,
                convex=convex,
                l2=l2,
                per=per,
                mixed=mixed,
                separate=separate,
            )
        samples = self._read_samples(clients, own_numbers, test, held_out)
        self.weights = normalised_weights(sizes if weights == "samples" else weights, len(clients))
        test_count = 0 if self.test_data is None else len(self.test_data[0])
        if test_owners is not None and test_owners.shape != (test_count,):
            raise ValueError(
                f"test_owners of shape {tuple(test_owners.shape)}, expected one for {test_count} "
                "test samples"
            )
        self.test_owners = test_owners
        self.floor = floor_of(loss)
        self.classes = softmax_classes(self.model, loss)
        self.convex = declared_convex(self.model, loss) if convex is None else convex
        self.losses = self._losses_of(samples, own_numbers, per)
        self._keep_own_tests()
        if ranks.size > 1:
            self.losses = SplitLosses(self.losses, own_numbers, len(clients), torch.tensor(sizes))
        if self.convex is False and not bool(self.start.any()):
            warnings.warn(
                "all parameters of this network are zero: its gradient may vanish there",
                stacklevel=2,
            )

    def _read_samples(
        self, clients: Sequence[Any], numbers: range, test: Any, held_out: float
    ) -> list[Samples]:
        """Return the samples of the clients with these numbers, and keep the test data, columns and
        class names.
        """
        dtype = self.start.dtype
        data = {f"client {i}": clients[i] for i in numbers}
        if test is not None:
            data["the test data"] = test
        read = [read_samples(each, owner, dtype) for owner, each in data.items()]
        samples, self.class_names = agree(read, list(data), self.ranks)
        self.columns = read[0].columns
        self.batch_size = batch_size_of(clients)
        if read[0].split is not None:
            split_inputs(self.model, read[0].split)
        samples = [(in_dtype(self.model, x, dtype), y) for x, y in samples]
        if test is not None:
            self.test_data = samples.pop()
        if held_out:
            self.tests_lent = True
            samples, self.test_data = lend_samples(samples, held_out)
        return samples

    def _losses_of(self, samples: list[Samples], numbers: range, per: Per) -> ClientLosses:
        """Return the losses of the clients with these numbers, after a trial of the model and the
        loss on their samples.
        """
        loss = self.loss
        owners = [f"client {i}" for i in numbers]
        plain = is_plain(self.model, nn.Linear) or is_plain(self.model, MatrixCompletion)
        if samples[0][0].is_sparse_csr and not is_plain(self.model, nn.Linear):
            raise ValueError(NOT_SPARSE)
        ties = ties_of(loss)
        if ties is not None:
            per = "client"
            loss = likelihood_of(ties)
            for (_, pairs), owner in zip(samples, owners, strict=True):
                validate_event_times(pairs, owner)
            if self.test_data is not None:
                validate_event_times(self.test_data[1], "the test data")
        family = family_of(loss)
        if family is not None:
            for (_, rows), owner in zip(samples, owners, strict=True):
                validate_glm_targets(family, rows, owner)
            if self.test_data is not None:
                validate_glm_targets(family, self.test_data[1], "the test data")
        # Without an ignored class where no client has it: all clients count alike.
        known = unsettled = known_loss(self.loss, per)
        if known is not None:
            if self.class_names and not known.kind.classes:
                raise ValueError(
                    "targets are texts, expected a loss of classes, such as cross_entropy"
                )
            outputs = None if plain else tried(self.model, first_samples(samples[0][0], 2))
            if hasattr(outputs, "logits"):
                self.model.register_forward_hook(take_logits)
            dtype = self.start.dtype
            samples = fit_targets(known, self.model, samples, owners, dtype)
            targets = [y for _, y in samples]
            if self.test_data is not None:
                tests = [self.test_data]
                (self.test_data,) = fit_targets(known, self.model, tests, ["the test data"], dtype)
                targets.append(self.test_data[1])
            known = known.settled(any(self.ranks.all_gather_object(known.ignores_some(targets))))
        self.known = known
        tried_numbers = [0] if plain else tried_clients(len(samples))
        validate_fit(self.model, known or self.loss, samples, tried_numbers)
        if not plain and mixes_samples(self.model, samples):
            per = "client"
        if known is None and family is None and per == "sample":
            validate_mean(self.model, self.loss, samples)
        layer = linear_layer(self.model)
        evaluated = ModelAndLoss(self.model, loss, self.shapes, known, per, self.mixed)
        if not self.separate:
            return fastest_losses(samples, evaluated, layer, self.l2)
        losses = []
        for client_samples in samples:
            if unsettled is not None:
                # As the client alone would: whether it has ignored samples is looked up in its own.
                settled = unsettled.settled(unsettled.ignores_some([client_samples[1]]))
                evaluated = evaluated._replace(known=settled)
            losses.append(fastest_losses([client_samples], evaluated, layer, self.l2))
        return SeparateLosses(losses)

    def _keep_own_tests(self) -> None:
        """Keep this rank's share of the test data, unless a loss compares all samples with each
        other or they are few.
        """
        k = self.ranks.size
        if k == 1 or self.test_data is None or self.losses.per == "client":
            return
        inputs, targets = self.test_data
        if inputs.is_sparse_csr or len(inputs) < 2 * k:
            return
        self.tests_split = True
        self.test_digest = digest_of(self.test_data)
        part = slice(len(inputs) * self.ranks.rank // k, len(inputs) * (self.ranks.rank + 1) // k)
        self.test_data = (inputs[part].clone(), targets[part].clone())

    @classmethod
    def from_losses(
        cls,
        losses: Sequence[Callable[[Tensor], Tensor]],
        start: Tensor,
        weights: Sequence[float] | Tensor | None = None,
        convex: bool | None = None,
        ranks: Ranks = ALONE,
        smoothness: float | Sequence[float] | None = None,
    ) -> Problem:
        """Make a problem from clients' losses, functions of one tensor of ``start``'s shape, each
        to a scalar.

        ``smoothness`` is one Lipschitz constant of the gradients, or one a client, from which
        ``lr="auto"`` is derived. Those of quadratic functions are found without it.

        Examples
        --------
        >>> import torch, fedfw
        >>> losses = [lambda x: (x - 1).square().sum(), lambda x: (x + 2).square().sum()]
        >>> problem = fedfw.Problem.from_losses(losses, start=torch.zeros(2), convex=True)
        >>> fedfw.simulate(problem, fedfw.FedAvg("l2:9"), rounds=9).x.tolist()
        [-0.5, -0.5]
        """
        if not len(losses):
            raise ValueError("losses=[], expected the function of at least one client")
        constants = None
        if smoothness is not None:
            constants = torch.as_tensor(smoothness, dtype=torch.float64).expand(len(losses))
            if not bool((constants.isfinite() & (constants > 0)).all()):
                raise ValueError(f"smoothness={smoothness}, expected positive numbers")
        own_numbers = own_clients(ranks, [1] * len(losses))
        own_part = slice(own_numbers.start, own_numbers.stop)
        of_clients: ClientLosses = FunctionLosses(
            losses[own_part], start, None if constants is None else constants[own_part]
        )
        if ranks.size > 1:
            of_clients = SplitLosses(of_clients, own_numbers, len(losses), None)
        return cls.of_client_losses(of_clients, start, weights, convex, ranks)

    @classmethod
    def of_client_losses(
        cls,
        losses: ClientLosses,
        start: Tensor,
        weights: Sequence[float] | Tensor | None = None,
        convex: bool | None = None,
        ranks: Ranks = ALONE,
    ) -> Problem:
        """Return a problem of losses that have neither a model nor samples, with the start
        ``start``.
        """
        problem = cls.__new__(cls)
        problem.model = nn.ParameterDict({"x": nn.Parameter(start.detach().clone())})
        # A placeholder: there are no outputs.
        problem.loss = nnf.mse_loss
        problem.shapes = {"x": tuple(start.shape)}
        problem.start = start.detach().clone().flatten()
        problem.weights = normalised_weights(weights, losses.n)
        problem.losses = losses
        problem.convex = convex
        problem.ranks = ranks
        return problem

    @classmethod
    def generated(
        cls,
        model: nn.Module,
        loss: LossFunction,
        clients: int,
        make: Make,
        test: Any = None,
        convex: bool | None = None,
        per: Per = "sample",
        ranks: Ranks = ALONE,
    ) -> Problem:
        """Make a problem of clients whose samples are made from their numbers when they take part.

        ``make`` maps numbers (m,) to inputs (m, samples, ...) and targets (m, samples, ...), always
        the same for the same number. F is a sum over all of them and is not worked out: records
        have the test data's results.
        """
        if ties_of(loss) is not None:
            raise ValueError("cox_loss is for stored samples, expected another loss")
        inputs, targets = make(torch.zeros(1, dtype=torch.int64))
        # Client 0 stands for all: they have one shape.
        client = inputs[0], targets[0]
        problem = cls(model, loss, [client], test, None, convex, per=per)
        losses = problem.losses
        # The samples of a layer behind others would have to pass those first.
        if not isinstance(losses, ModuleLosses) and not is_plain(problem.model, nn.Linear):
            evaluated = (problem.model, loss, problem.shapes, problem.known, losses.per, False)
            losses = ModuleLosses.of([client], ModelAndLoss(*evaluated))
        assert isinstance(losses, StackedLosses)
        own_numbers = own_clients(ranks, [1] * clients)
        problem.remake = None
        problem.losses = GeneratedLosses(
            clients, make, losses, problem.known, problem.start, own_numbers
        )
        problem.weights = normalised_weights(None, clients)
        problem.ranks = ranks
        problem._keep_own_tests()
        if ranks.size > 1:
            sizes = problem.losses.sizes[:1].expand(clients)
            problem.losses = SplitLosses(problem.losses, own_numbers, clients, sizes)
        return problem

    def __repr__(self) -> str:
        return f"Problem({', '.join(f'{value} {name}' for name, value in self._facts().items())})"

    def _repr_html_(self) -> str:
        return html_card("Problem", self._facts())

    def _facts(self) -> dict[str, str]:
        """Return the problem's model, numbers of clients, samples and parameters, and convexity in
        words, without those that are not known.
        """
        sizes = self.losses.sizes
        test = None if self.test_data is None else f"{len(self.test_data[0]):,}"
        facts = {
            "model": None
            if isinstance(self.model, nn.ParameterDict)
            else type(self.model).__name__,
            "clients": f"{self.n:,}",
            "training samples": None if sizes is None else f"{int(sizes.sum()):,}",
            "test samples": test,
            "parameters": f"{self.start.numel():,}",
            "inputs": shortened(self.columns) or None,
            "losses": {True: "convex", False: "non-convex", None: "possibly non-convex"}[
                self.convex
            ],
        }
        return {name: value for name, value in facts.items() if value is not None}

    def with_held_out(self, share: float) -> Problem:
        """Return the problem with test data taken from each client's training data, instead of its
        own test data.
        """
        if self.remake is None:
            raise ValueError(
                "this problem has no samples that its clients could lend: expected samples of each "
                "client on one process, or load_problem(..., held_out=0.2)"
            )
        return self.remake(held_out=share).to(self.start.device)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: samples once, and no function of the caller's."""
        return {name: value for name, value in self.__dict__.items() if name != "remake"}

    def to(self, device: torch.device) -> Problem:
        """Return the same problem with its data on ``device``."""
        moved = copy.copy(self)
        moved.remake = self.remake
        moved.losses = self.losses.to(device)
        moved.start = self.start.to(device)
        moved.weights = self.weights.to(device)
        if self.test_data is not None:
            inputs, targets = self.test_data
            moved.test_data = (inputs.to(device), targets.to(device))
        moved.model = copy.deepcopy(self.model).to(device)
        return moved

    def test(self, x: Tensor) -> Test:
        """Return what there is to say of x, flat (p,) or in the parameter's shape, on the test
        data: the loss and the answers.

        Accuracy where targets are classes or answers yes or no; concordance for `cox_loss`, of all
        test samples together and of each owner's.
        """
        return evaluate(self, x.flatten())

    def trained(self, x: Tensor) -> nn.Module:
        """Return a copy of the model with parameters x (p,)."""
        return with_parameters(self.model, x)
