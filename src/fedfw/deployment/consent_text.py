"""The text of an owner's file of consent, with an explanation of every line."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedfw.deployment.reveals import LEAK_TABLE, PROMISE_SENTENCE, SAMPLES_SENTENCE
from fedfw.deployment.server_options import DATA_OPTIONS, READING_OPTIONS, default_options

if TYPE_CHECKING:
    from fedfw.deployment.consent import Consent
    from fedfw.deployment.terms import DataBudget

_TEXT = """\
# What the owner of these data allows. The node's installed code keeps to this file, whatever a
# server or an app says. Mode 0600: no other user may read or change it. It is read anew for every
# message.

# The owner's name for the data. The ledger NAME.ledger.jsonl beside this file has every private
# release that was made from them, and NAME.answers how many answers were computed from them, over
# all runs. Keep the name when the data grow or change, and never remove, edit or put back a ledger
# or a count. NAME.secret is never sent; NAME.checks.json says which data 'fedfw deploy check-data'
# has found fit for which model.
{data_set}

# What may be sent to the server:
#   atoms      extreme points of the constraint set; they are always allowed
#   losses     the client's loss at the model, and the number of a certificate
#   numbers    the norm of its first gradient and its smoothness, for a penalty or a step size of
#              "auto"; its gap and its curvature in every round, for a schedule of "curvature"
#   gradients  whole gradients, sums and averages of them: fedfw-anchored, fedlmo, fedmuon,
#              fedmuon-cv, frank-wolfe, scaffold, fedadamw, fedda, fast-fedda
#   models     local models: fedavg, fedavgm, fedcm, fedadam
{share}

# The algorithms that may run; by default all that share no more than this.
{algorithms}

# The constraint sets that may be used, by their names in 'fedfw sets'; ksparse:k=8 stands for k up
# to 8, and "all" for all sets. What one message revealed of a client with a single image, and of
# its sample on a linear model (docs/studies/leakage.md; labels were read off every atom of a linear
# model):
{leaks}
{sets}

# How many samples a gradient has at least: a client with fewer takes part in nothing, and no
# smaller batch is drawn.
{samples}
{least_samples}

# How many local steps a round may have: a round of K steps reveals what K rounds reveal.
{most_local_steps}

# How many answers may be computed from the data, over all runs, names and restarts.
{most_rounds}

# The options of a run that its server may set. Without this line they are those below. These are
# never among them, because they say which data are read: {never}. Under a budget that is required,
# {reading} are the signed app's as well: they decide how data are read.
{options}

# How many parameters a model may have; by default any number.
{most_parameters}

# The privacy budget of the data, for all runs together. With this table, runs that are not private
# are refused unless required is false, private ones clip samples' gradients at clip, and one begins
# only if all of it fits into the budget: what it may spend is charged at once, however early it
# ends. Data take part as 'fedfw deploy check-data' has found them, and an error on the way closes
# the promise until 'fedfw deploy reopen'.
{privacy}

# What the work on one message may take: GiB of memory and seconds. data-memory is what the reader
# of a file may take, in GiB; by default it is 4 times the file's size or 1 GiB, the larger.
{limits}
{data_memory}
"""


def consent_text(consent: Consent, budget: DataBudget) -> str:
    """Return the text of a consent's file; an option that is not given is a comment with an
    example, and ``budget`` is the example of a budget.
    """
    budget_lines = [
        _line(key, getattr(budget, key)) for key in ("eps", "delta", "required", "clip")
    ]
    has_default_options = consent.options == default_options()
    limits = [_line(key, getattr(consent.limits, key)) for key in ("memory", "seconds")]
    return _TEXT.format(
        data_set=_line("data-set", consent.data_set or None, "clinic-7"),
        share=_line("share", list(consent.share)),
        algorithms=_line("algorithms", consent.algorithms, ["fedfw", "fedfw+"]),
        sets=_line("sets", consent.sets),
        leaks=_commented(LEAK_TABLE.splitlines()),
        samples=_commented(textwrap.wrap(f"{SAMPLES_SENTENCE} {PROMISE_SENTENCE}", 98)),
        least_samples=_line("least-samples", consent.least_samples),
        most_local_steps=_line("most-local-steps", consent.most_local_steps),
        most_rounds=_line("most-rounds", consent.most_rounds),
        never=", ".join(DATA_OPTIONS),
        reading=" and ".join(READING_OPTIONS),
        options=_listed_line("options", consent.options, commented=has_default_options),
        most_parameters=_line("most-parameters", consent.most_parameters, 1000000),
        privacy="\n".join(
            f"# {line}" if consent.privacy is None else line
            for line in ("[privacy]", *budget_lines)
        ),
        limits="\n".join(("[limits]", *limits)),
        data_memory=_line("data-memory", consent.limits.data_memory, 8.0),
    )


def _commented(lines: Sequence[str]) -> str:
    return "\n".join(f"#   {line}" for line in lines)


def _listed_line(key: str, values: Sequence[str], commented: bool) -> str:
    """Return a key with a list of texts over several lines, as TOML; ``commented`` for a list that
    is the default and so changes nothing.
    """
    listed = textwrap.wrap(
        ", ".join(json.dumps(value) for value in values), 110, break_on_hyphens=False
    )
    lines = [f"{key} = [", *(f"  {line}" for line in listed), "]"]
    return "\n".join(f"# {line}" if commented else line for line in lines)


def _line(key: str, value: Any, example: Any = None) -> str:
    """Return a key with its value, or as a comment with an example where it is not given; JSON of
    such values is TOML.
    """
    return f"# {key} = {json.dumps(example)}" if value is None else f"{key} = {json.dumps(value)}"
