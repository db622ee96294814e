"""The facts that must agree for a checkpoint to be continued, as texts by name, and the sentence
that names what does not.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from torch import Tensor

from fedfw.algorithms.contract import Algorithm, Run
from fedfw.algorithms.curvature import CurvatureSteps
from fedfw.algorithms.rules import StepRule
from fedfw.problems.digest import digest_of, text_of
from fedfw.rounds.options import Options
from fedfw.rounds.participation import Participation

Fingerprint = dict[str, str]
"""The facts of a run, as texts by name."""

_ROUNDS = "rounds"
_START = "start"
_SCHEDULE = "schedule"
_PRIVACY = "privacy"
_GO_BY_ROUNDS = {
    _SCHEDULE: (
        "the schedule goes by the number of rounds, so a run of so many would have taken other "
        "steps"
    ),
    "penalty": (
        "the default penalty goes by the number of rounds; to go on, give the penalty as the "
        "number that it was"
    ),
    "participation": (
        "the schedule goes by how often a function chooses each client, over all rounds"
    ),
    _PRIVACY: "the noise was planned for so many rounds",
}
"""The facts that may differ because the number of rounds does, and why a run can then not be
lengthened.
"""


def fingerprint(
    run: Run,
    algorithm: Algorithm,
    options: Options,
    start: Tensor,
    participation: Participation,
    noise: float | None = None,
) -> Fingerprint:
    """Return texts by name that identify a run, beside its problem, which `fedfw.problems.digest`
    describes.

    Parameters
    ----------
    run : Run
        What is fixed before the first round.
    algorithm : Algorithm
        With its defaults filled in.
    options : Options
        How the run goes; what is only looked at (``tol``, ``eval_every``, ``certify``) is left out,
        and so is where (``device``).
    start : Tensor
        x^1, (p,).
    participation : Participation
        Who takes part.
    noise : float, optional
        The noise multiplier of a private run.
    """
    # A penalty or a step size is compared as the number it stands for, a schedule or a decay by its
    # rates.
    names = (f.name for f in fields(algorithm) if f.name not in ("constraint", "schedule", "decay"))
    promise = options.promise
    private = (
        "none"
        if promise is None
        else f"{promise.text} with noise {noise!r} for {options.rounds} rounds"
    )
    return {
        "algorithm": algorithm.name
        + (f" (revision {algorithm.revision})" if algorithm.revision > 1 else ""),
        "constraint": text_of(run.constraint),
        **{name: text_of(getattr(algorithm, name)) for name in names},
        "clients": repr(run.n),
        _START: f"{start.dtype} {tuple(start.shape)} {digest_of([start])}",
        "participation": str(participation),
        "relax": text_of(options.relax or {}),
        "local_steps": repr(options.local_steps),
        "batch_size": repr(options.batch_size),
        "seed": repr(options.seed),
        _PRIVACY: private,
        _ROUNDS: repr(options.rounds),
    }


def after_rounds(fingerprint_before: Fingerprint, rule: StepRule, t: int) -> Fingerprint:
    """Return the fingerprint with the step sizes of rounds 1, 2, 3 and t, as far as these are done:
    those to come do not matter.
    """
    if isinstance(rule, CurvatureSteps):  # these steps follow from all the rest
        rule = rule.longest
    compared_rounds = [t_done for t_done in sorted({1, 2, 3, t}) if 1 <= t_done <= t]
    rates = [tuple(rule.rates(rule.init(), t_done)[0]) for t_done in compared_rounds]
    return fingerprint_before | {_SCHEDULE: repr(rates)}


def refuse_another_run(
    folder: Path, saved: Mapping[str, str], here: Mapping[str, str], done: int
) -> None:
    """Refuse to continue a checkpoint of another run; the error says what differs.

    Parameters
    ----------
    folder : Path
        Where the checkpoint lies.
    kept, here : mapping of str to str
        The fingerprints of the checkpoint and of the run that is to go on, each after the rounds
        that are done. The number of rounds may differ.
    done : int
        Rounds that the checkpoint has done.
    """
    rounds = int(here[_ROUNDS])
    if rounds < done:
        raise ValueError(
            f"rounds={rounds}, expected at least {done}: {folder} holds a run that has done so many"
        )
    has_other_rounds = saved.get(_ROUNDS) != here[_ROUNDS]
    differences = []
    for name in dict.fromkeys([*saved, *here]):
        old = saved.get(name, "not there")
        new = here.get(name, "not there")
        if old != new and name != _ROUNDS:
            reason = (
                f" ({_GO_BY_ROUNDS[name]})" if has_other_rounds and name in _GO_BY_ROUNDS else ""
            )
            differences.append(f"{name} was {old}, is {new}{reason}")
    if saved.get(_START) != here[_START]:
        differences.append(
            "where the start was drawn anew, call torch.manual_seed before the model is made"
        )
    if differences:
        raise ValueError(f"{folder} holds another run: {'; '.join(differences)}")
