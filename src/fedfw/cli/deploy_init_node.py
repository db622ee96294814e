"""``fedfw deploy init-node``: the file by which an owner says what may be done with the data, and an empty ledger."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedfw.deployment.consent import CONSENT, STATE, USUAL_SETS, Consent, DataBudget
from fedfw.deployment.reveals import leak_table, promise_sentence, samples_sentence
from fedfw.options import options_of

DESCRIPTION = (
    "Write an owner's file of consent, with an explanation of every line, an empty ledger of private releases and a "
    "folder for the client's memory. Nobody else can read them. By default atoms of sets that say little may be sent, "
    "and nothing else. It prints what each choice reveals."
)
_NUMBERS = ("least_samples", "most_local_steps", "most_rounds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder, the data's name and their budget."""
    parser.add_argument("folder", type=Path, help="where the node's keys are, or a new folder")
    parser.add_argument("--data-set", required=True, metavar="NAME", help="your name for the data, such as clinic-7")
    parser.add_argument("--eps", type=float, help="the data's budget over all runs; runs without privacy are refused")
    parser.add_argument("--delta", type=float, help="the delta of that budget")
    parser.add_argument(
        "--clip", type=float, help="the bound at which samples' gradients are clipped in private runs [1]"
    )
    parser.add_argument("--sets", nargs="+", metavar="SET", help=f"sets that may be used [{' '.join(USUAL_SETS)}]")
    for name in _NUMBERS:
        declared = options_of(Consent)[name]
        parser.add_argument(f"--{declared.key}", metavar="N", help=f"{declared.help} [{declared.default}]")


def execute(options: argparse.Namespace) -> int:
    """Write the files, and say how the node is started with them."""
    if (options.eps is None) != (options.delta is None):
        raise ValueError("--eps and --delta belong together: a budget has both")
    if not options.data_set:
        raise ValueError(f"--data-set={options.data_set!r}, expected letters, digits, '-' and '_'")
    if options.eps is None and options.clip is not None:
        raise ValueError("--clip belongs to a budget: give --eps and --delta, too")
    budget = None
    if options.eps is not None:
        budget = DataBudget(options.eps, options.delta, clip=1.0 if options.clip is None else options.clip)
    declared = options_of(Consent)
    given = {name: getattr(options, name) for name in _NUMBERS if getattr(options, name) is not None}
    numbers = {name: declared[name].parse(text, "command line") for name, text in given.items()}
    sets = USUAL_SETS if options.sets is None else tuple(options.sets)
    consent = Consent(options.data_set, sets=sets, privacy=budget, **numbers)
    folder = options.folder.absolute()
    try:
        path = consent.write(folder)
    except FileExistsError:
        raise ValueError(f"{folder / CONSENT} exists already: edit it, or give another folder") from None
    print(f"{path} says what this node may do with {options.data_set}: read it, and change what you like.")
    print(f"\n{leak_table()}\n\n{samples_sentence()} {promise_sentence()}")
    print(
        f"Allowed here: {', '.join(consent.share)} of the sets {', '.join(consent.sets)}, of {consent.least_samples} or"
    )
    print(
        f"more samples, {consent.most_local_steps} local steps a round, {consent.most_rounds} rounds over all runs.\n"
    )
    print(f"{consent.ledger(0, folder).path} will have every private release: keep it for as long as the data.")
    if budget is not None:
        print("Before private runs, and whenever the data have changed, check them as the app reads them:")
        print(f"  fedfw deploy check-data {folder} --app FOLDER")
    print("Start the node with them, beside what docs/deployment.md gives it:")
    print(f"""  fedfw deploy node ... --node-config 'partition-id=0 consent="{path}" state-dir="{folder / STATE}"'""")
    return 0
