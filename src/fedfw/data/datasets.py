"""The table of data sets: the loaders, the command line and its help go through it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedfw.data.base import Columns, Data, Request
from fedfw.data.builtin import (
    FEATURES,
    FORMS,
    SPARSE_SAMPLES,
    load_diabetes,
    load_digits,
    load_sparse,
    load_synthetic,
)
from fedfw.data.folder import find_files
from fedfw.data.heart_disease import COLUMNS as HEART_COLUMNS
from fedfw.data.heart_disease import PATIENTS as HEART_PATIENTS
from fedfw.data.heart_disease import load_heart_disease
from fedfw.data.images import load_cifar10, load_emnist, load_idx_images, load_mnist
from fedfw.data.libsvm import ENDINGS, load_a9a, load_mushrooms, load_own
from fedfw.data.movielens import ITEMS, USERS, load_ml_100k
from fedfw.data.shakespeare import ALPHABET, CONTEXT, load_shakespeare
from fedfw.data.sources import CIFAR10_FILES, HEART_DISEASE_FILES, IDX_FILES, TCGA_BRCA_FILES
from fedfw.data.tables import load_table
from fedfw.data.tcga_brca import PATIENTS, VARIABLES, load_tcga_brca
from fedfw.options import nearest


@dataclass(frozen=True)
class Dataset:
    """One entry of the table.

    Parameters
    ----------
    name, summary, load
        What it is called, what it is, and what reads or makes it.
    shape, classes
        Of one input, and how many classes there are; (), None where that depends or where targets
        are numbers.
    samples
        For training and for testing; None where that depends.
    owners
        The natural partitions it has.
    folder, layouts
        In the data folder, and the files in it; any of the layouts will do, the first one that is
        complete is used. Built-in data sets have no folder and need no files.
    argument
        What may follow the name and a colon.
    reads_path
        Whether that is a user's own file.
    """

    name: str
    summary: str
    load: Callable[[Request], Data]
    shape: tuple[int, ...] = ()
    classes: int | None = None
    samples: tuple[int, int] | None = None
    owners: tuple[str, ...] = ()
    folder: str = ""
    layouts: tuple[tuple[str, ...], ...] = ((),)
    argument: str = ""
    reads_path: bool = False

    def find(self, data_dir: Path | None) -> tuple[Path, ...]:
        """Return its files; a `MissingDataError` says where they are not at hand."""
        return find_files(self.name, self.folder, self.layouts, data_dir)


def _emnist(split: str, summary: str, classes: int, samples: tuple[int, int]) -> Dataset:
    """Return the entry of one of EMNIST's splits."""
    return Dataset(
        f"emnist-{split}",
        summary,
        partial(load_emnist, classes=classes),
        (1, 28, 28),
        classes,
        samples,
        ("writer",),
        "emnist",
        _in_folders((f"emnist-{split}.mat",), "matlab"),
    )


def _in_folders(files: tuple[str, ...], *folders: str) -> tuple[tuple[str, ...], ...]:
    return files, *(tuple(f"{folder}/{file}" for file in files) for folder in folders)


_ENTRIES = (
    Dataset(
        "digits", "handwritten digits of scikit-learn", load_digits, (1, 8, 8), 10, (1437, 360)
    ),
    Dataset(
        "diabetes",
        "disease scores of scikit-learn (numbers)",
        load_diabetes,
        (10,),
        None,
        (353, 89),
    ),
    Dataset(
        "synthetic",
        "synthetic clients of FedProx and pFedMe",
        load_synthetic,
        (FEATURES,),
        owners=("client",),
        argument=" | ".join(FORMS),
    ),
    Dataset(
        "sparse",
        "two classes, ten of many features matter",
        load_sparse,
        classes=2,
        samples=SPARSE_SAMPLES,
        argument="P",
    ),
    Dataset(
        "mnist",
        "handwritten digits",
        load_mnist,
        (1, 28, 28),
        10,
        (60_000, 10_000),
        ("writer",),
        "mnist",
        (IDX_FILES,),
    ),
    Dataset(
        "fashion-mnist",
        "pieces of clothing",
        load_idx_images,
        (1, 28, 28),
        10,
        (60_000, 10_000),
        folder="fashion-mnist",
        layouts=(IDX_FILES,),
    ),
    _emnist("digits", "more handwritten digits", 10, (240_000, 40_000)),
    _emnist("balanced", "handwritten digits and letters, equally many", 47, (112_800, 18_800)),
    _emnist("byclass", "handwritten digits and letters, all of them", 62, (697_932, 116_323)),
    Dataset(
        "emnist-small",
        "the first rows of emnist-balanced",
        partial(load_emnist, classes=47),
        (1, 28, 28),
        47,
        (2_000, 2_000),
        ("writer",),
        "emnist-small",
        (("emnist-balanced-small.mat",),),
    ),
    Dataset(
        "cifar10",
        "small colour photographs",
        load_cifar10,
        (3, 32, 32),
        10,
        (50_000, 10_000),
        folder="cifar10",
        layouts=_in_folders(CIFAR10_FILES, "cifar-10-batches-bin"),
    ),
    Dataset(
        "ml-100k",
        f"MovieLens ratings, {USERS} users x {ITEMS} films (numbers)",
        load_ml_100k,
        (2,),
        None,
        (80_000, 20_000),
        ("user",),
        "ml-100k",
        _in_folders(("u.data",), "ml-100k"),
    ),
    Dataset(
        "a9a",
        "census: who earns much",
        load_a9a,
        (123,),
        2,
        (32_561, 16_281),
        folder="libsvm",
        layouts=tuple((f"a9a{one}", f"a9a.t{two}") for one in ENDINGS for two in ENDINGS),
    ),
    Dataset(
        "mushrooms",
        "edible or poisonous",
        load_mushrooms,
        (112,),
        2,
        (6_499, 1_625),
        folder="libsvm",
        layouts=tuple((f"mushrooms{ending}",) for ending in ENDINGS),
    ),
    Dataset(
        "shakespeare",
        "speeches: which character comes next",
        load_shakespeare,
        (CONTEXT,),
        len(ALPHABET),
        (49_108, 869),
        ("speaker",),
        "shakespeare",
        (("input.txt",), ("input.txt.gz",)),
        argument="CONTEXT",
    ),
    Dataset(
        "tcga-brca",
        "breast cancer in six regions: time until death",
        load_tcga_brca,
        (VARIABLES,),
        None,
        (PATIENTS["train"], PATIENTS["test"]),
        ("region",),
        "tcga-brca",
        (TCGA_BRCA_FILES,),
    ),
    Dataset(
        "heart-disease",
        "patients of four hospitals: who has a heart disease",
        load_heart_disease,
        (len(HEART_COLUMNS),),
        2,
        (HEART_PATIENTS["train"], HEART_PATIENTS["test"]),
        ("hospital",),
        "heart-disease",
        (HEART_DISEASE_FILES,),
    ),
    Dataset("table", "your own .csv or .npz file", load_table, argument="PATH", reads_path=True),
    Dataset(
        "libsvm", "your own LIBSVM file of classes", load_own, argument="PATH", reads_path=True
    ),
    Dataset(
        "libsvm-numbers",
        "your own LIBSVM file of numbers to be predicted",
        partial(load_own, numbers=True),
        argument="PATH",
        reads_path=True,
    ),
)

USUAL_CLIENTS = 10
"""Clients where no number is given and the data have no natural owners."""

DATASETS: dict[str, Dataset] = {entry.name: entry for entry in _ENTRIES}
"""Every data set by its name (the part before the colon)."""


def find_dataset(name: str) -> tuple[Dataset, str]:
    """Return the entry of a data set and what follows the colon; capital letters in the name do not
    matter.
    """
    base, _, argument = name.partition(":")
    if base.lower() not in DATASETS:
        close = nearest(base.lower(), DATASETS)
        raise ValueError(f"unknown dataset {base!r}{close}, expected one of {', '.join(DATASETS)}")
    return DATASETS[base.lower()], argument


def load_data(
    name: str,
    data_dir: str | Path | None = None,
    clients: int = USUAL_CLIENTS,
    seed: int = 0,
    columns: Columns | None = None,
) -> Data:
    """Return a data set by its name.

    Parameters
    ----------
    name : str
        A name of ``fedfw data list``; some take an argument after a colon, as in ``synthetic:1,1``.
    data_dir : path, optional
        The folder of all data sets; by default ``$FEDFW_DATA``, or a cache in your home.
    clients : int
        How many clients the synthetic data are drawn for; others do not look at it.
    seed : int
        Fixes the synthetic data and which ratings are for testing; others do not look at it.
    columns : fedfw.data.Columns, optional
        What the columns of a user's own table (``table:PATH``) are.

    Returns
    -------
    Data
        ``train`` and ``test`` have ``inputs`` (samples, ...) and ``targets`` (samples,) each;
        ``classes`` is the number of classes.

    Examples
    --------
    >>> import fedfw
    >>> data = fedfw.load_data("digits")
    >>> data.train.inputs.shape, data.classes
    (torch.Size([1437, 1, 8, 8]), 10)
    """
    data_dir = None if data_dir is None else Path(data_dir)
    entry, argument = find_dataset(name)
    if argument and not entry.argument:
        raise ValueError(f"{name!r}: {entry.name} takes no argument")
    if clients < 1:
        raise ValueError(f"clients={clients}, expected at least 1")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed={seed}, expected a whole number of at least 0 (and below 2^63)")
    columns = columns or Columns()
    if columns.named and entry.name != "table":
        raise ValueError(
            f"a column {columns.named[0]!r} goes with your own table (table:PATH), not with "
            f"{entry.name}"
        )
    return entry.load(
        Request(entry.name, argument, entry.find(data_dir), data_dir, clients, seed, columns)
    )
