"""What a round of every method of `fedfw reproduce networks` costs, before the study is begun.

    python -m fedfw_reproduction.bench.networks --device cuda --data-dir DIR            all comparisons
    python -m fedfw_reproduction.bench.networks --device cuda --data-dir DIR cifar10    one of them

A few rounds in full size; the first half, in which a GPU sets things up, is not counted. The last column is what all
runs of the method would take one after another. A method that fails is told with its error, and the others go on.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from fedfw.data import MissingDataError
from fedfw_reproduction.bench.pages import machine, markdown
from fedfw_reproduction.lab import Site
from fedfw_reproduction.networks.protocol import Method
from fedfw_reproduction.networks.study import STUDIES
from fedfw_reproduction.protocols import FULL


def seconds_a_round(method: Method, rounds: int, site: Site) -> float:
    """Of the method's first setting."""
    first = replace(method.runs[0], trials=method.runs[0].trials[:1]).settled({})
    result = replace(first, config=first.config.having(rounds=rounds), every=rounds // 2).compute(site)
    spent = result["runs"][0]["curve"]["seconds"]
    return float(spent[-1] - spent[0]) / (rounds - rounds // 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cifar10, certified, shakespeare, mnist, oracles, payloads [all]")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    site = Site(options.data_dir, options.device)
    rows = []
    for study in STUDIES:
        name = study.name.removeprefix("networks-")
        for method in study.make(FULL).methods if not options.names or name in options.names else ():
            try:
                each = seconds_a_round(method, options.rounds, site)
            except MissingDataError:
                break
            except Exception as error:  # the others' costs are still worth knowing
                rows.append((name, method.label, f"{type(error).__name__}: {error}", ""))
                continue
            runs = len(method.runs) + len(method.runs[0].needs)
            rows.append(
                (name, method.label, f"{1e3 * each:.0f}", f"{each * runs * study.make(FULL).config.rounds:.0f}")
            )
            print(*rows[-1], sep="\t", flush=True)
    print("\n".join([machine(options.device), "", *markdown(("", "method", "ms a round", "s for all runs"), rows)]))


if __name__ == "__main__":
    main()
