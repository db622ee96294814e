"""``fedfw advise``: which method to use, why, and the measurement behind the advice."""

import argparse
import json
from pathlib import Path

from fedfw.advice import DIFFER, GOAL, PROJECTION, SEES, Measured, advise
from fedfw.cli.arguments import JSON, adds, argument
from fedfw.report.tables import wrapped

add_arguments = adds(
    argument(
        "constraint",
        nargs="?",
        default="l1:30",
        help="constraint set, such as l1:10; see 'fedfw sets' [%(default)s]",
    ),
    argument(
        "--differ",
        choices=DIFFER,
        default="much",
        help="how different the clients' data are [%(default)s]",
    ),
    argument(
        "--sees",
        choices=SEES,
        default="atoms",
        help="what the server may see: atoms alone, two numbers of each client too, sums of "
        "gradients too, or every client's gradients [%(default)s]",
    ),
    argument(
        "--bytes-up",
        type=float,
        metavar="BYTES",
        help="what each client may send in the whole run: the least residual within it wins",
    ),
    argument(
        "--residual",
        type=float,
        help="without --bytes-up: the fewest bytes to this residual win, 1 at the start and 0 at "
        f"the optimum [{GOAL}]",
    ),
    argument(
        "--projection",
        choices=PROJECTION,
        default="auto",
        help="whether the server can project on the set; auto: by the set [%(default)s]",
    ),
    argument("--partial", action="store_true", help="only some clients take part in a round"),
    argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="another measured.json of 'fedfw reproduce frontier' than fedfw's",
    ),
    JSON,
)


def execute(options: argparse.Namespace) -> int:
    """Print the advice."""
    advice = advise(
        options.constraint,
        differ=options.differ,
        sees=options.sees,
        bytes_up=options.bytes_up,
        projection=options.projection,
        partial=options.partial,
        residual=options.residual,
        table=None if options.table is None else Measured.read(options.table),
    )
    if options.json:
        print(json.dumps(advice.to_json()))
        return 0
    print(f"Use {advice.method.title}:")
    print(
        f"  fedfw run --constraint {options.constraint} {advice.flags} --rounds {advice.point.of}\n"
    )
    print(wrapped(f"Why: {' '.join(advice.reasons)}"))
    print(wrapped(f"Measured: {advice.row}."))
    return 0
