"""The refusals of a problem, each in the user's terms and with its owner named: data, targets,
models and losses.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedfw.problems.known_losses import KnownLoss, LossFunction, Per
from fedfw.problems.samples import first_samples
from fedfw.problems.stacks import Samples

_DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
_FEW = 9
"""Samples that a model and a loss are tried on."""
_TOGETHER = "the loss is a function of all of a client's samples together"


# --- targets ---


def fit_targets(
    known: KnownLoss,
    model: nn.Module,
    samples: list[Samples],
    owners: Sequence[str],
    dtype: torch.dtype,
) -> list[Samples]:
    """Return the samples with targets of the dtype that the loss takes; refuse targets whose shape
    or values do not fit the model's outputs.
    """
    output_shapes: dict[torch.Size, torch.Size] = {}  # of a sample, by the shape of its input
    fitted = []
    for (inputs, targets), owner in zip(samples, owners, strict=True):
        input_shape = inputs.shape[1:]
        if input_shape not in output_shapes:
            with _named(owner, (inputs, targets)):
                result = model(first_samples(inputs, _FEW))
            if not isinstance(result, Tensor):
                raise ValueError(
                    f"the model returns {type(result).__name__}, expected a tensor, or an "
                    "object with logits: let a module around it return one"
                )
            output_shapes[input_shape] = result.shape[1:]
            _validate_weight_shape(known, output_shapes[input_shape])
        targets = known.converted(targets, dtype)
        _validate_shape(known, output_shapes[input_shape], targets, owner)
        _validate_values(known, output_shapes[input_shape], targets, owner)
        fitted.append((inputs, targets))
    if len({targets.is_floating_point() for _, targets in fitted}) > 1:
        raise ValueError(
            "some clients have class numbers and some have probabilities, expected the same of all"
        )
    return fitted


def _validate_shape(known: KnownLoss, output: torch.Size, targets: Tensor, owner: str) -> None:
    """Refuse targets whose shape or dtype does not fit the outputs: the loss would broadcast
    them.
    """
    name = known.kind.function.__name__
    targets_shape = tuple(targets.shape)
    outputs_shape = (len(targets), *output)
    if not known.kind.classes:
        if targets_shape != outputs_shape:
            raise ValueError(
                f"{owner}: targets of shape {targets_shape} for outputs of shape {outputs_shape}, "
                f"expected equal shapes: {name} "
                "would compare every output with every target"
            )
        return
    if not output:
        raise ValueError(
            f"{owner}: outputs of shape {outputs_shape}, expected (samples, classes) for {name}"
        )
    if targets.is_floating_point():
        if not known.takes_probabilities or targets_shape != outputs_shape:
            raise ValueError(
                f"{owner}: targets are {targets.dtype} numbers of shape {targets_shape}, expected "
                "class numbers (integers)"
                + (
                    f" or probabilities of shape {outputs_shape}"
                    if known.takes_probabilities
                    else ""
                )
            )
    # Class numbers have all axes of the outputs but that of the classes.
    elif targets_shape != (len(targets), *output[1:]):
        raise ValueError(
            f"{owner}: class numbers of shape {targets_shape} for outputs of shape "
            f"{outputs_shape}, expected shape {(len(targets), *output[1:])}"
        )


def _validate_weight_shape(known: KnownLoss, output: torch.Size) -> None:
    """Refuse a weight for each sample of a batch, which would go to other samples wherever batches
    are formed anew.
    """
    for name in ("weight", "pos_weight"):
        weight = known.options.get(name)
        if weight is None or known.kind.classes:
            continue
        try:
            # A weight that broadcasts to more than one sample's outputs has a row for each sample.
            fits = torch.empty(1, *output).add(weight.cpu()).shape == (1, *output)
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(
                f"the loss has a {name} of shape {tuple(weight.shape)}, expected one for the "
                f"outputs of a sample, {tuple(output)}: which sample it is for is not known"
            )


def _validate_values(known: KnownLoss, output: torch.Size, targets: Tensor, owner: str) -> None:
    """Refuse targets for which the loss is not defined or not convex, and those that are all
    ignored.
    """
    kind = known.kind
    least, most = kind.least, kind.most
    expected = f"numbers from {least:g} to {most:g}"
    class_numbers = kind.classes and not targets.is_floating_point()
    if class_numbers:
        least, most = 0, output[0] - 1
        expected = f"class numbers from {least} to {most}"
    invalid = (targets < least) | (targets > most)
    if kind.allowed:
        invalid = ~torch.isin(targets, torch.tensor(kind.allowed, dtype=targets.dtype))
        expected = " or ".join(f"{number:g}" for number in kind.allowed)
    if class_numbers and known.ignored is not None:
        invalid &= targets != known.ignored
        expected += f" or {known.ignored}, which the loss ignores"
    if bool(invalid.any()):
        value = targets[invalid][0].item()
        if value == -100 and class_numbers and known.ignored is None:
            expected += (
                ": samples are ignored only where the loss says so, as "
                "nn.CrossEntropyLoss(ignore_index=-100) does"
            )
        raise ValueError(f"{owner}: a target of {value}, expected {expected}")
    # `weighs`: samples count with the weights of their classes, or not at all where ignored.
    # `masses` are these counts, whose sum is the denominator of the mean loss.
    if known.weighs(targets) and not bool(known.masses(targets[None]).sum() > 0):
        raise ValueError(
            f"{owner}: the loss ignores all of its samples or gives all of them weight 0"
        )


# --- models and losses ---


def validate_model(model: nn.Module) -> None:
    """Refuse a model that draws at random, or that keeps more than its parameters from one call to
    the next.
    """
    for name, module in model.named_modules():
        if isinstance(module, _DROPOUT) and module.training and module.p > 0:
            raise ValueError(
                f"module {name!r} drops values at random, so the losses are no functions and runs "
                "would not repeat: "
                "call model.eval() or set its p to 0"
            )
        if module.training and getattr(module, "track_running_stats", False):
            fix = (
                ": fedfw.batch_norm_to_group_norm(model) does that"
                if isinstance(module, _BatchNorm)
                else ""
            )
            raise ValueError(
                f"module {name!r} keeps running statistics ({type(module).__name__}): they are no "
                "parameters, so no constraint and no atom would carry them between clients. Call "
                "model.eval() to keep those of a pretrained model as they are, or use GroupNorm "
                f"or LayerNorm{fix}. With track_running_stats=False it works on all of a client's "
                "samples together, and then without batch_size and privacy"
            )
        for tensor, value in vars(module).items():
            if (
                isinstance(value, Tensor)
                and {f"{tensor}_orig", f"{tensor}_g"} & module._parameters.keys()
            ):
                raise ValueError(
                    f"module {name!r} works out its {tensor!r} in a hook (old-style weight_norm, "
                    "spectral_norm or pruning) and keeps it between calls: use "
                    "torch.nn.utils.parametrizations or parametrize"
                )


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are trained; refuses none, and those of several or other types."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no trainable parameters")
    dtypes = {p.dtype for p in parameters}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
        raise ValueError(
            f"parameters in {', '.join(map(str, dtypes))}, expected all in float32 or all in "
            "float64"
        )
    return parameters


def mixes_samples(model: nn.Module, clients: list[Samples]) -> bool:
    """Return whether the outputs of a sample change with the others of its batch, found out by a
    trial on a few samples.

    Raises
    ------
    ValueError
        Where two calls give two answers, and where a call changes a buffer or its inputs.
    """
    inputs, _ = _few_of(clients)
    finite = inputs.reshape(len(inputs), -1).isfinite().all(1)
    inputs = inputs[finite] if bool(finite.any()) else inputs
    versions = _versions(model)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        copied = inputs.clone()
        version_before = copied._version
        model(copied)
        if copied._version != version_before:
            raise ValueError(
                "the model writes over its inputs, so clients' data would change from one call to "
                "the next: set "
                "inplace=False in its first layers, or copy the inputs in its forward"
            )
        random_state = torch.get_rng_state()
        first = _tensors(model(inputs))
        second = _tensors(model(inputs))
        draws = not torch.equal(random_state, torch.get_rng_state())
        if draws or not _same(first, second):
            raise ValueError(
                "the model draws at random (dropout in its forward?), so the losses are no "
                "functions and runs would "
                "not repeat: call model.eval() before"
            )
        changed = _versions(model) - versions
        if changed:
            raise ValueError(
                f"the model changes its buffer {min(changed)[0]!r} when it is called: buffers are "
                "no parameters, so no "
                "constraint and no atom would carry them between clients"
            )
        # The first sample in a batch of copies of itself, instead of the others.
        of_copies = _tensors(model(inputs[:1].expand_as(inputs)))
    return not _same([output[:1] for output in first], [output[:1] for output in of_copies])


def validate_fit(
    model: nn.Module, loss: LossFunction, clients: list[Samples], tried: Sequence[int]
) -> None:
    """Try a few samples of some clients, so that a wrong shape is refused in the user's terms."""
    for i in tried:
        inputs, targets = clients[i]
        with _named(f"client {i}", clients[i]):
            value = loss(model(first_samples(inputs, _FEW)), targets[:_FEW])
        if value.numel() != 1:
            raise ValueError(
                f"the loss gives a tensor of shape {tuple(value.shape)}, expected one number"
            )


def validate_mean(model: nn.Module, loss: LossFunction, clients: list[Samples]) -> None:
    """Refuse a loss whose value of a few samples together is not the mean of their losses one by
    one.
    """
    inputs, targets = _few_of(clients)
    with torch.no_grad():
        together = loss(model(inputs), targets)
        try:
            singles = (slice(j, j + 1) for j in range(len(inputs)))
            losses = [
                loss(model(inputs[sample]), targets[sample]).reshape(()) for sample in singles
            ]
            mean = torch.stack(losses).mean()
        except (RuntimeError, IndexError, ValueError):
            # A loss that fails for single samples is no mean over them: NaN equals no loss.
            mean = torch.full_like(together, torch.nan)
    if not _same([together.reshape(())], [mean.reshape(())]):
        raise ValueError(
            f"the loss of {len(inputs)} samples is {float(together):.6g}, and the mean of their "
            f"losses is {float(mean):.6g}, expected the same: say per='client' for a loss of all "
            "of a client's samples together that is no mean over them"
        )


def validate_splitting(per: Per, weighs: bool, *, batch_size: int | None, private: bool) -> None:
    """Refuse minibatches and privacy where they are not defined, from `ClientLosses.per` and
    `ClientLosses.weighs`.
    """
    if per == "client" and batch_size is not None:
        raise ValueError(
            f'batch_size={batch_size}, expected none: {_TOGETHER} (per="client", or a model that '
            "mixes samples), and a "
            "minibatch would have another one"
        )
    if per == "client" and private:
        raise ValueError(
            f'privacy does not go with per="client" or a model that mixes samples: {_TOGETHER}, so '
            "one sample may "
            "change its gradient by any amount"
        )
    if weighs and private:
        raise ValueError(
            "privacy does not go with class weights or ignored samples: the mean is over the "
            "weights of the client's "
            "own samples, so one sample may change its gradient by more than its clipped share"
        )


@contextmanager
def _named(owner: str, samples: Samples) -> Iterator[None]:
    """Run a trial of the model without gradients and without advancing torch's generator; errors
    name the owner of the data.
    """
    inputs, targets = samples
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    except (RuntimeError, IndexError, ValueError) as error:
        raise ValueError(
            f"the model and the loss do not fit {owner}'s data, inputs {tuple(inputs.shape)} and "
            f"targets {tuple(targets.shape)}: {error}"
        ) from None


def tried_clients(n: int) -> list[int]:
    """Return the first, the middle and the last of n clients."""
    return sorted({0, n // 2, n - 1})


def _few_of(clients: list[Samples]) -> Samples:
    """Return inputs and targets of a few samples, spread over the clients that are tried and have
    samples of the first client's shape.
    """
    tried = tried_clients(len(clients))
    few_inputs = []
    few_targets = []
    for i in tried:
        inputs, targets = clients[i]
        if (inputs.shape[1:], targets.shape[1:]) == tuple(part.shape[1:] for part in clients[0]):
            # Evenly spaced samples, first and last included.
            chosen = torch.linspace(0, len(inputs) - 1, min(len(inputs), _FEW // len(tried))).long()
            few_inputs.append(inputs[chosen])
            few_targets.append(targets[chosen])
    return torch.cat(few_inputs), torch.cat(few_targets)


def _versions(model: nn.Module) -> set[tuple[str, int, int]]:
    """Return the buffers with torch's count of their changes, which also counts those that write
    the same numbers again.
    """
    return {(name, id(buffer), buffer._version) for name, buffer in model.named_buffers()}


def _tensors(outputs: Any) -> list[Tensor]:
    """Return the tensors that a model gave, which may be one, a tuple or a dictionary."""
    if isinstance(outputs, Tensor):
        return [outputs]
    held = outputs if isinstance(outputs, dict | tuple | list) else vars(outputs)
    parts = held.values() if isinstance(held, dict) else held
    return [part for part in parts if isinstance(part, Tensor)]


def _same(tensors: list[Tensor], others: list[Tensor]) -> bool:
    """Return whether numbers are equal but for rounding; NaN equals NaN."""
    for tensor, other in zip(tensors, others, strict=True):
        if not tensor.is_floating_point():
            tensor = tensor.double()
        other = other.to(tensor.dtype)
        # Half of the digits; entries are compared on the scale of the largest finite one.
        tolerance = sqrt(torch.finfo(tensor.dtype).eps)
        largest = float(tensor.nan_to_num(0.0, 0.0, 0.0).abs().max()) if tensor.numel() else 0.0
        if not torch.allclose(
            tensor, other, rtol=tolerance, atol=tolerance * largest, equal_nan=True
        ):
            return False
    return True
