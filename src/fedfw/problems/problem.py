"""The public way to state a federated problem."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from fedfw.checks import all_finite
from fedfw.errors import NonFiniteError
from fedfw.notebook import html_card
from fedfw.problems.adapters import (
    features_of,
    linear_layer,
    remove_adapters,
    split_inputs,
    take_logits,
)
from fedfw.problems.base import (
    ClientLosses,
    Shapes,
    Test,
    WeightedGradient,
    normalised_weights,
)
from fedfw.problems.checks import (
    fit_targets,
    mixes_samples,
    tried_clients,
    validate_fit,
    validate_mean,
    validate_model,
)
from fedfw.problems.completion import CompletionLosses, MatrixCompletion
from fedfw.problems.composed import (
    RegularisedLosses,
    SeparateLosses,
    SplitLosses,
    own_clients,
    size_of,
    speed_of,
)
from fedfw.problems.cox import CoxLosses
from fedfw.problems.digest import digest_of
from fedfw.problems.generated import FunctionLosses, GeneratedLosses, Make
from fedfw.problems.known_losses import (
    KnownLoss,
    LossFunction,
    Per,
    floor_of,
    is_convex,
    known_loss,
)
from fedfw.problems.linear import LinearLosses, closed_form, is_plain
from fedfw.problems.modules import ModuleLosses, flatten, samples_at_once, unflatten
from fedfw.problems.samples import (
    agree,
    batch_size_of,
    first_samples,
    in_dtype,
    lend_samples,
    read_samples,
)
from fedfw.problems.sparse import SparseLosses
from fedfw.problems.stacks import Samples, Stack
from fedfw.problems.survival import concordance, cox_loss, partial_likelihood, validate_event_times
from fedfw.ranks import ALONE, Ranks
from fedfw.sets.base import ConstraintSet, shapes_of
from fedfw.sets.registry import as_set
from fedfw.terminal import shortened

_EVALUATION_CHUNK = 8192
_NOT_SPARSE = (
    "sparse inputs need torch.nn.Linear with cross-entropy, the logistic or the squared loss, all "
    "without options: pass dense ones (toarray()) for others"
)


class Problem:
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

    mixed: bool = False
    separate: bool = False
    tests_lent: bool = False
    remake: Callable[..., Problem] | None = None

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
        fastest: see the class.
        """
        if per not in ("sample", "client"):
            raise ValueError(f"per={per!r}, expected 'sample' or 'client'")
        validate_model(model)
        if not (math.isfinite(l2) and l2 >= 0):
            raise ValueError(f"l2={l2}, expected a number of at least 0")
        self.model = copy.deepcopy(model)
        self.loss = loss
        self.mixed = mixed
        self.separate = separate
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not parameters:
            raise ValueError("the model has no trainable parameters")
        dtypes = {p.dtype for p in parameters}
        if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
            raise ValueError(
                f"parameters in {', '.join(map(str, dtypes))}, expected all in float32 or all in "
                "float64"
            )
        if not len(clients):
            raise ValueError("clients=[], expected the data of at least one client")
        dtype = parameters[0].dtype
        self.ranks = ranks
        own = self._own(clients, ranks)
        owners = [f"client {i}" for i in own]
        read = [
            read_samples(clients[i], owner, dtype) for i, owner in zip(own, owners, strict=True)
        ]
        if test is not None:
            owners.append("the test data")
            read.append(read_samples(test, owners[-1], dtype))
        samples, self.class_names = agree(read, owners, ranks)  # class numbers -> labels
        self.columns = read[0].columns  # names of a frame's inputs
        self.batch_size = batch_size_of(clients)  # that of data loaders, if they are given
        parts = read[0].parts
        if parts is not None:
            split_inputs(self.model, parts)
        samples = [(in_dtype(self.model, x, dtype), y) for x, y in samples]
        if held_out:
            if test is not None or ranks.size > 1:
                raise ValueError(
                    f"held_out={held_out}: expected no test data beside it, and one process"
                )
            samples, test = lend_samples(samples, held_out)
            samples.append(test)
            owners.append("the test data")
            self.tests_lent = True
        elif ranks.size == 1:
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
        self.shapes: Shapes = shapes_of(self.model)  # of the parameters, by name
        self.start = flatten(parameters)  # (p,)
        sizes = [size_of(data) for data in clients]
        self.weights = normalised_weights(sizes if weights == "samples" else weights, len(clients))
        self.test_data = None if test is None else samples.pop()
        tested = 0 if self.test_data is None else len(self.test_data[0])
        if test_owners is not None and test_owners.shape != (tested,):
            raise ValueError(
                f"test_owners of shape {tuple(test_owners.shape)}, expected one for {tested} test "
                "samples"
            )
        self.test_owners = test_owners
        survival = loss is cox_loss
        if survival:
            per = "client"
            for i, (_, pairs) in zip(own, samples, strict=True):
                validate_event_times(pairs, f"client {i}")
            if self.test_data is not None:
                validate_event_times(self.test_data[1], "the test data")
        known = unsettled = known_loss(loss, per)
        plain = is_plain(self.model, nn.Linear) or is_plain(self.model, MatrixCompletion)
        if samples[0][0].is_sparse_csr and not is_plain(self.model, nn.Linear):
            raise ValueError(_NOT_SPARSE)
        if known is not None and not plain:
            take_logits(self.model, first_samples(samples[0][0], 2))
        self._layer = linear_layer(self.model)
        if self.class_names and known is not None and not known.kind.classes:
            raise ValueError("targets are texts, expected a loss of classes, such as cross_entropy")
        if known is not None:
            samples = fit_targets(known, self.model, samples, [f"client {i}" for i in own], dtype)
            if self.test_data is not None:
                (self.test_data,) = fit_targets(
                    known, self.model, [self.test_data], ["the test data"], dtype
                )
            targets = [y for _, y in samples] + (
                [] if self.test_data is None else [self.test_data[1]]
            )
            known = known.settled(any(ranks.all_gather_object(known.ignores_some(targets))))
        validate_fit(
            self.model, known or loss, samples, [0] if plain else tried_clients(len(samples))
        )
        if not plain and mixes_samples(self.model, samples):
            per = "client"
        if known is None and per == "sample":
            validate_mean(self.model, loss, samples)
        self._known = known
        self._keep_own_tests(per)
        self.floor = floor_of(loss)  # F is never below it; None where no such number is known
        self.l2 = l2
        self.losses: ClientLosses
        if separate:
            client_losses = []
            for own_samples in samples:
                # As the client alone would: whether it has ignored samples is looked up in its own.
                own_known = unsettled
                if unsettled is not None:
                    own_known = unsettled.settled(unsettled.ignores_some([own_samples[1]]))
                client_losses.append(self._losses_of([own_samples], own_known, per))
            self.losses = SeparateLosses(client_losses)
        else:
            self.losses = self._losses_of(samples, known, per)
        if ranks.size > 1:
            self.losses = SplitLosses(self.losses, own, len(clients), torch.tensor(sizes))
        self.convex = declared_convex(self.model, loss) if convex is None else convex
        self.classes = softmax_classes(self.model, loss)
        if self.convex is False and not bool(self.start.any()):
            warnings.warn(
                "all parameters of this network are zero: its gradient may vanish there",
                stacklevel=2,
            )

    def _losses_of(self, samples: list[Samples], known: KnownLoss | None, per: Per) -> ClientLosses:
        """Return the losses of clients with these samples: in closed form where there is one."""
        layer = self._layer
        derivative = closed_form(layer, known, samples[0][1]) if per == "sample" else None
        squared = known is not None and not known.options and known.kind.function is nnf.mse_loss
        losses: ClientLosses
        if samples[0][0].is_sparse_csr:
            if derivative is None or layer is None:
                raise ValueError(_NOT_SPARSE)
            losses = SparseLosses(layer, derivative, samples)
        elif derivative is not None and layer is not None:
            features = [(features_of(self.model, layer, x), y) for x, y in samples]
            losses = LinearLosses.of(layer, derivative, features)
        elif (
            isinstance(self.model, MatrixCompletion)
            and is_linear(self.model)
            and squared
            and per == "sample"
        ):
            losses = CompletionLosses.of(self.model, samples)
        elif self.loss is cox_loss and is_plain(self.model, nn.Linear) and len(self.shapes) == 1:
            losses = CoxLosses.of(samples)
        else:
            function = partial_likelihood if self.loss is cox_loss else self.loss
            losses = ModuleLosses.of(
                self.model, function, self.shapes, samples, known, per, self.mixed
            )
        if self.mixed and not isinstance(losses, ModuleLosses):
            raise ValueError(
                f"mixed=True changes nothing for {type(self.model).__name__}, whose gradient has a "
                "closed form, expected a network"
            )
        return RegularisedLosses(losses, self.l2) if self.l2 else losses

    def _own(self, clients: Sequence[Any], ranks: Ranks) -> range:
        """Return the clients that this rank keeps."""
        if ranks.size == 1:
            return range(len(clients))

        def speed(i: int) -> float:
            alone = Problem(self.model, self.loss, [clients[i]]).to(torch.device(ranks.device))
            return speed_of(alone.losses, alone.start)

        return own_clients(ranks, [size_of(data) for data in clients], speed)

    def _keep_own_tests(self, per: Per) -> None:
        """Keep this rank's share of the test data, unless a loss compares them all with each
        other.
        """
        k = self.ranks.size
        self.tests_split = False
        if (
            k > 1
            and self.test_data is not None
            and per == "sample"
            and not self.test_data[0].is_sparse_csr
            and len(self.test_data[0]) >= 2 * k
        ):
            self.tests_split = True
            self.test_digest = digest_of(self.test_data)
            count = len(self.test_data[0])
            part = slice(count * self.ranks.rank // k, count * (self.ranks.rank + 1) // k)
            inputs, targets = self.test_data
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
        >>> round(problem.smoothness(), 6)
        2.0
        >>> fedfw.simulate(problem, fedfw.FedAvg("l2:9"), rounds=9).x.tolist()
        [-0.5, -0.5]
        """
        if not len(losses):
            raise ValueError("losses=[], expected the function of at least one client")
        problem = cls.__new__(cls)
        problem.model = nn.ParameterDict({"x": nn.Parameter(start.detach().clone())})
        problem.loss = nnf.mse_loss
        problem.shapes = {"x": tuple(start.shape)}
        problem.start = start.detach().clone().flatten()
        problem.weights = normalised_weights(weights, len(losses))
        problem.test_data = problem.test_owners = None
        problem.tests_split = False
        problem.l2 = 0.0
        problem.ranks = ranks
        problem.class_names = problem.columns = ()
        problem.batch_size = None
        own = own_clients(ranks, [1] * len(losses), lambda i: 1.0)
        constants = None
        if smoothness is not None:
            constants = torch.as_tensor(smoothness, dtype=torch.float64).expand(len(losses))
            if not bool((constants.isfinite() & (constants > 0)).all()):
                raise ValueError(f"smoothness={smoothness}, expected positive numbers")
            constants = constants[own.start : own.stop]
        problem.losses = FunctionLosses(losses[own.start : own.stop], start, constants)
        if ranks.size > 1:
            problem.losses = SplitLosses(problem.losses, own, len(losses), None)
        problem.convex = convex
        problem.classes = problem._known = problem.floor = None
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
        client = tuple(part[0] for part in make(torch.zeros(1, dtype=torch.int64)))
        problem = cls(model, loss, [client], test, None, convex, per=per)
        first_losses = problem.losses
        known = problem._known

        @lru_cache
        def model_on(device: torch.device) -> nn.Module:
            return copy.deepcopy(problem.model).to(device)

        def losses_of(stack: Stack) -> ClientLosses:
            """Return the losses of a stack of clients that ``make`` has made.

            They are of the same kind as those of the first client, from which the problem was
            built, and their targets are prepared as ``Problem`` prepares stored ones.
            """
            function = loss
            if known is not None:
                stack = replace(stack, targets=known.converted(stack.targets, problem.start.dtype))
            if loss is cox_loss:
                function = partial_likelihood
                for targets in stack.targets:
                    validate_event_times(targets, "a client that make() made")
            if isinstance(first_losses, LinearLosses) and first_losses.model is problem.model:
                return LinearLosses(
                    first_losses.model, first_losses.derivative, [stack], stack.sizes
                )
            model = model_on(stack.inputs.device)
            return ModuleLosses(
                model, function, problem.shapes, [stack], stack.sizes, known, first_losses.per
            )

        own = own_clients(ranks, [1] * clients, lambda i: 1.0)
        problem.remake = None
        problem.losses = GeneratedLosses(clients, make, losses_of, problem.start, own)
        problem.losses.per = first_losses.per
        problem.losses.weighs = first_losses.weighs
        problem.weights = normalised_weights(None, clients)
        problem.ranks = ranks
        if ranks.size > 1:
            problem._keep_own_tests(per)
            sizes = problem.losses.sizes
            problem.losses = SplitLosses(
                problem.losses, own, clients, None if sizes is None else sizes[:1].expand(clients)
            )
        return problem

    @property
    def n(self) -> int:
        """Return number of clients."""
        return self.losses.n

    def __repr__(self) -> str:
        return f"Problem({', '.join(f'{value} {name}' for name, value in self._facts().items())})"

    def _repr_html_(self) -> str:
        return html_card("Problem", self._facts())

    def _facts(self) -> dict[str, str]:
        """Return what is worth knowing of the problem, in words."""
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
        """Return the problem with test data that each client lends from its training data; the
        test data of this one are not looked at.
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

    def bind(self, constraint: Any) -> ConstraintSet:
        """Return the constraint, a set, a `Product` or a text such as ``"l1:10"``, on the flat
        vector of the parameters.
        """
        bound: ConstraintSet = as_set(constraint).bind(self.model)
        return bound

    def shaped(self, x: Tensor) -> Tensor:
        """Return a flat point (p,) in the shape of the parameter where the model is one matrix,
        else as it is.
        """
        (shape, *others) = self.shapes.values()
        return x.reshape(shape) if not others and len(shape) > 1 else x

    def value_and_gradient(
        self, x: Tensor, round_: int = 0, *, exact: bool = False
    ) -> tuple[float, Tensor]:
        """Return F and its gradient at one point x, flat (p,) or in the parameter's shape, in which
        the gradient then is, too.

        ``exact`` asks for float64 whatever the data are in.
        """
        values, gradients = self.each_value_and_gradient(x.flatten(), round_, exact=exact)
        value, gradient = self.total(values, gradients, round_)
        return value, gradient.reshape(x.shape)

    def each_value_and_gradient(
        self, x: Tensor, round_: int = 0, *, exact: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return w_i f_i (m,) and w_i grad f_i (m, p) at one point x (p,), of all clients that this
        rank keeps.
        """
        who = self.losses.all_clients(x.device)
        weights = self._own_weights(who)
        oracle = WeightedGradient(
            self.losses,
            weights.to(x.dtype),
            who,
            lambda: None,
            round_,
            exact_weights=weights,
        )
        return oracle(x.expand(len(who), -1), exact=exact)

    def total(self, values: Tensor, gradients: Tensor, round_: int = 0) -> tuple[float, Tensor]:
        """Return the sums over all clients of what `each_value_and_gradient` gave: F, and its
        gradient (p,).
        """
        gradient = gradients.sum(0)
        if not all_finite(gradient):
            who = self.losses.all_clients(gradient.device)
            clients = who[~gradients.isfinite().all(1)].tolist()
            raise NonFiniteError(
                f"round {round_}: NaN or infinity in the gradient of client {clients[:10]}", clients
            )
        value, gradient = self.ranks.sums(values.double().sum(), gradient)
        return float(value), gradient

    def _own_weights(self, who: Tensor) -> Tensor:
        """Return the weights (m,) of the clients that this rank keeps."""
        return self.weights if self.ranks.size == 1 else self.weights[who]

    def works_in_float64(self) -> bool:
        """Return whether losses and gradients can be worked out in float64, which is found by a
        trial at the start.
        """
        if self.start.dtype is torch.float64:
            return True
        try:
            tried = self.losses.exactly(
                self.start[None], self.losses.all_clients(self.start.device)[:1]
            )
        except RuntimeError:
            return False
        return all(result.dtype is torch.float64 for result in tried)

    def value(self, x: Tensor) -> float:
        """Return F at one point x, flat (p,) or in the parameter's shape."""
        who = self.losses.all_clients(x.device)
        return self.value_at(x.flatten().expand(len(who), -1))

    def value_at(self, points: Tensor) -> float:
        """Return sum_i w_i f_i(x_i), with a point (m, p) for each client that this rank keeps."""
        return float(self.ranks.sums(self.each_value_at(points).sum())[0])

    def each_value_at(self, points: Tensor) -> Tensor:
        """Return w_i f_i(x_i) (m,) in float64, with a point (m, p) for each client that this rank
        keeps.
        """
        who = self.losses.all_clients(points.device)
        return self.losses.value(points, who).double() * self._own_weights(who)

    def smoothness(self) -> float | None:
        """Return L' = n max w_i L_i, the smoothness of F's worst term, where it is known."""
        worst = self._worst_smoothness()
        return None if worst is None else worst[0]

    def local_smoothness(self) -> float | None:
        """Return max L_i, the smoothness of the worst f_i itself, where it is known."""
        worst = self._worst_smoothness()
        return None if worst is None else worst[1]

    def _worst_smoothness(self) -> tuple[float, float] | None:
        """Return n max w_i L_i and max L_i; computed once for the losses that there are."""
        kept = self.__dict__.get("_kept_smoothness")
        if kept is None or kept[0] is not self.losses:
            kept = self.losses, self._compute_smoothness()
            self.__dict__["_kept_smoothness"] = kept
        return kept[1]

    def _compute_smoothness(self) -> tuple[float, float] | None:
        constants = self.losses.smoothness()
        who = self.losses.all_clients(self.weights.device)
        own = None
        if constants is not None:
            weighted = self.n * float((self._own_weights(who).cpu() * constants.cpu()).max())
            own = weighted, float(constants.max())
        of_ranks = self.ranks.all_gather_object(own)
        if None in of_ranks:
            return None
        return max(pair[0] for pair in of_ranks), max(pair[1] for pair in of_ranks)

    def test(self, x: Tensor) -> Test:
        """Return what there is to say of x, flat (p,) or in the parameter's shape, on the test
        data: the loss and the answers.

        Accuracy where targets are classes or answers yes or no; concordance for `cox_loss`, of all
        test samples together and of each owner's.
        """
        if self.test_data is None:
            return Test(None, None)
        x = x.flatten()
        inputs, targets = self.test_data
        known = self._known
        loss = self._known or self.loss
        ignored = None if known is None else known.ignored
        at_once = len(inputs)
        if self.losses.per == "sample" and not inputs.is_sparse_csr:
            at_once = min(_EVALUATION_CHUNK, samples_at_once(self.model, inputs))
        total = 0.0
        mass = 0.0
        right = 0
        judged = 0
        with torch.no_grad():
            for start in range(0, len(inputs), at_once):
                part = slice(start, start + at_once)
                outputs = torch.func.functional_call(
                    self.model,
                    unflatten(x, self.shapes),
                    (inputs if at_once == len(inputs) else inputs[part],),
                )
                wanted = targets[part]
                here = len(wanted) if known is None else float(known.masses(wanted[None]).sum())
                if here:  # torch's mean of a part without weight is NaN
                    total += float(loss(outputs, wanted)) * here
                    mass += here
                guess = _decided(self.loss, outputs, wanted)
                if guess is not None:
                    judged_here = (
                        torch.ones_like(wanted, dtype=torch.bool)
                        if ignored is None
                        else wanted != ignored
                    )
                    right += int((guess == wanted)[judged_here].sum())
                    judged += int(judged_here.sum())
        if self.tests_split:
            sums = torch.tensor([total, mass, right, judged], dtype=torch.float64)
            total, mass, right, judged = self.ranks.sums(sums)[0].tolist()
        if self.loss is cox_loss:
            return Test(
                total / mass, None, concordance(outputs, targets), self._concordances(outputs)
            )
        return Test(total / mass, right / judged if judged else None)

    def _concordances(self, outputs: Tensor) -> dict[str, float] | None:
        """Return the concordance by owner, from the outputs (m, 1) of all test samples."""
        assert self.test_data is not None
        if self.test_owners is None:
            return None
        own = {owner: self.test_owners == owner for owner in sorted(set(self.test_owners.tolist()))}
        each = {
            str(owner): concordance(outputs[rows], self.test_data[1][rows])
            for owner, rows in own.items()
        }
        return {owner: value for owner, value in each.items() if value is not None}

    def trained(self, x: Tensor) -> nn.Module:
        """Return a copy of the model with parameters x (p,)."""
        return with_parameters(self.model, x)


def with_parameters(model: nn.Module, x: Tensor) -> nn.Module:
    """Return a copy of a model with parameters x, flat (p,) or in the shape of its only one."""
    model = copy.deepcopy(model)
    remove_adapters(model)
    values = unflatten(x.detach().flatten(), shapes_of(model))
    model.load_state_dict(values, strict=False)
    return model


def is_linear(model: nn.Module) -> bool:
    """Return whether a model's outputs are known to be linear in its parameters, sample by
    sample.
    """
    return linear_layer(model) is not None or is_plain(model, MatrixCompletion)


def softmax_classes(model: nn.Module, loss: LossFunction) -> int | None:
    """Return the number of classes of a softmax regression: one linear layer with cross-entropy;
    None for other models.
    """
    softmax = loss is nnf.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)
    layer = linear_layer(model)
    return layer.out_features if softmax and layer is not None else None


def _decided(loss: LossFunction, outputs: Tensor, targets: Tensor) -> Tensor | None:
    """Return the classes that outputs stand for, in the form of the targets; None where there are
    no classes.
    """
    if loss is nnf.binary_cross_entropy_with_logits or isinstance(loss, nn.BCEWithLogitsLoss):
        return (outputs > 0).to(targets.dtype)
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1:
        return None
    return outputs.argmax(1)


def declared_convex(model: nn.Module, loss: LossFunction) -> bool | None:
    """Return whether losses are convex in the parameters, as far as the model and the loss say."""
    declared = getattr(model, "convex", None)
    if isinstance(declared, bool):
        return declared
    if is_linear(model):
        return True if is_convex(loss) else None
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    return False if len(matrices) > 1 else None
