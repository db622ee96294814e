"""``fedfw data``: which data sets there are, getting them, and who holds what."""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from fedfw.cli.arguments import Argument, adds, argument
from fedfw.data import DATASETS, MissingDataError, data_folder
from fedfw.data import partition as divided
from fedfw.data.datasets import Dataset
from fedfw.data.download import download
from fedfw.data.sources import SOURCES
from fedfw.presets import ProblemOptions, load_chosen, usual_division
from fedfw.report.tables import fitted
from fedfw.terminal import shortened

_HEADER = ("name", "content", "train", "test", "classes", "owners", "status")
_ROWS = 30  # clients that are listed one by one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verbs list, get and show, each with its own arguments."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (do, help_, arguments) in _VERBS.items():
        verb = verbs.add_parser(name, help=help_)
        verb.set_defaults(parser=verb, do=do)
        adds(*arguments, _FOLDER)(verb)


def list_data(options: argparse.Namespace) -> int:
    """Print every data set: what it is, how large, its natural partitions, and whether it is at
    hand.
    """
    rows: list[tuple[str, ...]] = [_HEADER]
    forms = []
    for name, entry in DATASETS.items():
        sizes = ("-", "-") if entry.samples is None else tuple(f"{n:,}" for n in entry.samples)
        kinds = (str(entry.classes or "-"), ", ".join(entry.owners) or "-")
        rows.append((name, entry.summary, *sizes, *kinds, _status(entry, options.data_dir)))
        forms += [f"  {name}:{form}" for form in entry.argument.split(" | ") if form]
    print(fitted(rows, right=(2, 3, 4)))
    print(f"\nFolder: {data_folder(options.data_dir)}")
    print("Download a missing data set:  fedfw data get NAME")
    print("The writers of mnist are a download of their own:  fedfw data get qmnist-labels")
    print("\n".join(["Names with an argument:", *forms]))
    print("Partitions: iid, labels:K, dirichlet:ALPHA, or the owners of the data set.")
    return 0


def get_data(options: argparse.Namespace) -> int:
    """Download the files of a data set that are missing, and print where each file is."""
    name = options.name
    if name not in SOURCES:
        dataset = DATASETS.get(name.partition(":")[0])  # "table:PATH" is the data set "table"
        # A data set with a folder needs files there; these are offered by no publisher.
        if dataset is None or dataset.folder:
            raise ValueError(f"no download of {name!r}, expected one of {', '.join(SOURCES)}")
        print(f"{name} needs no download")
        return 0
    collection = SOURCES[name]
    folder = data_folder(options.data_dir) / collection.folder
    print(collection.note)
    for source in collection.sources:
        state = "put into" if download(source, folder) else "already in"
        for file in source.members or (source.file,):  # an archive is unpacked into its members
            print(f"{file}: {state} {folder}")
    return 0


def show_data(options: argparse.Namespace) -> int:
    """Print who holds which training samples, and save a picture of it."""
    from fedfw.report.plots import plot_holdings, save_figure

    options_of_problem = ProblemOptions(
        options.name,
        options.data_dir,
        options.target,
        options.time,
        options.client_column,
        clients=options.clients,
        partition=options.partition,
    )
    data = load_chosen(options_of_problem, options.seed)
    chosen, clients = usual_division(data, options.partition, options.clients)
    parts = divided(chosen, data, clients, seed=options.seed)
    title = f"{data.name}, {chosen}, {clients} clients"
    sizes = torch.tensor([len(part) for part in parts])  # (clients,)
    counts = sizes  # (clients, labels) for data with labels, which the picture then shows
    print(f"{title}: {int(sizes.sum()):,} of {len(data.train):,} training samples\n")
    if data.columns:
        print(f"inputs: {shortened(data.columns)}\n")
    columns = {"samples": sizes}
    labels = range(0 if data.classes is None or data.sequences else data.classes)
    if labels:
        counts = torch.stack(
            [data.train.targets[part].bincount(minlength=len(labels)) for part in parts]
        )
        columns["labels held"] = (counts > 0).sum(1)
    # The number of owners of each kind that each client's samples have.
    for kind, ids in data.train.owners.items():
        columns[f"{kind}s"] = torch.tensor([len(set(ids[rows].tolist())) for rows in parts])
    if clients <= _ROWS:
        columns |= {str(label): counts[:, label] for label in labels}
        rows = zip(range(clients), *(column.tolist() for column in columns.values()), strict=True)
        table = [("client", *columns), *(tuple(map(str, row)) for row in rows)]
    else:
        table = [("a client's", "least", "median", "largest")]
        for name, column in columns.items():
            spread = (column.min(), column.median(), column.max())
            table.append((name, *(str(int(value)) for value in spread)))
    print(fitted(table, right=range(len(table[0]))))
    save_figure(plot_holdings(counts, title), options.out)
    print(f"\npicture: {options.out}")
    return 0


def _status(entry: Dataset, data_dir: Path | None) -> str:
    """Return whether a data set is at hand."""
    if not entry.folder:
        return "your file" if entry.reads_path else "built in"
    try:
        entry.find(data_dir)
    except MissingDataError:
        return "missing"
    return "at hand"


_FOLDER = argument(
    "--data-dir",
    type=Path,
    help="folder of the data sets ($FEDFW_DATA, or a cache in your home)",
)
_NAME = argument("name", help="such as mnist; see 'fedfw data list'")
_OF_TABLE = "of your own table (table:PATH): the column that"
_VERBS: dict[str, tuple[Callable[[argparse.Namespace], int], str, tuple[Argument, ...]]] = {
    "list": (list_data, "every data set, and whether it is at hand", ()),
    "get": (
        get_data,
        "download a data set from its publisher, with its checksum verified",
        (_NAME,),
    ),
    "show": (
        show_data,
        "who holds what: a table and a picture",
        (
            _NAME,
            argument(
                "--partition",
                help="who holds what, such as labels:3, dirichlet:0.3 or iid [by the data]",
            ),
            argument("--target", metavar="NAME", help=f"{_OF_TABLE} is predicted"),
            argument("--time", metavar="NAME", help=f"{_OF_TABLE} has the time until it"),
            argument("--client-column", metavar="NAME", help=f"{_OF_TABLE} says whose it is"),
            argument(
                "--clients",
                type=int,
                help="number of clients [all natural owners of the partition, else 10]",
            ),
            argument("--seed", type=int, default=0, help="fixes the split [%(default)s]"),
            argument(
                "--out", type=Path, default=Path("holdings.png"), help="the picture [%(default)s]"
            ),
        ),
    ),
}
"""The function of each verb, its line of help, and its own arguments."""
