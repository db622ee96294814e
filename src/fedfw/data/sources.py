"""Where the publishers serve the files, with checksums."""

from __future__ import annotations

from dataclasses import dataclass
from posixpath import basename


@dataclass(frozen=True)
class Source:
    """A file to download.

    Parameters
    ----------
    url
        Its last part is the file's name.
    md5
        Of the file as it is served.
    members
        Of an archive (.zip or .tar.gz): the base names of the files that are kept.
    inside
        The folder of the members in the archive: where they lie when a user has unpacked it himself.
    """

    url: str
    md5: str
    members: tuple[str, ...] = ()
    inside: str = ""

    @property
    def file(self) -> str:
        return basename(self.url)


@dataclass(frozen=True)
class Collection:
    """The files that ``fedfw data get`` puts into a folder, and what the user should know about them."""

    folder: str
    sources: tuple[Source, ...]
    note: str = ""


IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
QMNIST_FILES = ("qmnist-train-labels-idx2-int.gz", "qmnist-test-labels-idx2-int.gz")
EMNIST_FILES = ("emnist-digits.mat", "emnist-balanced.mat", "emnist-byclass.mat")
CIFAR10_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def _files(base: str, md5: dict[str, str]) -> tuple[Source, ...]:
    return tuple(Source(base + file, checksum) for file, checksum in md5.items())


_MNIST = Collection(
    "mnist",
    _files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        dict(
            zip(
                IDX_FILES,
                (
                    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "d53e105ee54ea40749a09fcbcd1e9432",
                    "9fb629c4189551a2d022fa330f9573f3",
                    "ec29112dd5afa0611ce80d1b7f02629c",
                ),
                strict=True,
            )
        ),
    ),
    note="The publisher's own page no longer serves MNIST: this is PyTorch's mirror of the same files.",
)

_FASHION_MNIST = Collection(
    "fashion-mnist",
    _files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        dict(
            zip(
                IDX_FILES,
                (
                    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "25c81989df183df01b3e8a0aad5dffbe",
                    "bef4ecab320f06d8554ea6380940ec79",
                    "bb300cfdad3c16e7a12a480ee83cd310",
                ),
                strict=True,
            )
        ),
    ),
)

_QMNIST_LABELS = Collection(
    "qmnist-labels",
    _files(
        "https://raw.githubusercontent.com/facebookresearch/qmnist/master/",
        dict(
            zip(
                QMNIST_FILES,
                ("0058f8dd561b90ffdd0f734c6a30e5e4", "5b5b05890a5e13444e108efe57b788aa"),
                strict=True,
            )
        ),
    ),
)

_EMNIST = Collection(
    "emnist",
    (
        Source(
            "https://biometrics.nist.gov/cs_links/EMNIST/matlab.zip",
            "1bbb49fdf3462bb70c240eac93fff0e4",
            EMNIST_FILES,
            inside="matlab",
        ),
    ),
    note="One archive of about 700 MB has the digits, balanced and byclass splits, with the writer of each sample.",
)

_CIFAR10 = Collection(
    "cifar10",
    (
        Source(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            CIFAR10_FILES,
            inside="cifar-10-batches-bin",
        ),
    ),
)

_ML_100K = Collection(
    "ml-100k",
    (
        Source(
            "https://files.grouplens.org/datasets/movielens/ml-100k.zip",
            "0e33842e24a9c977be4e0107933c0723",
            ("u.data",),
            inside="ml-100k",
        ),
    ),
    note="MovieLens may not be redistributed: its terms are at "
    "https://files.grouplens.org/datasets/movielens/ml-100k-README.txt",
)

# The publisher of these lists no checksums: the ones here are of copies at hand, so a mismatch may also mean that
# the publisher has changed a file.
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_A9A = Collection(
    "libsvm",
    _files(_LIBSVM, {"a9a": "fb3596510d780aaf76a06dc721d49662", "a9a.t": "f0bb16cf1ee3e80ff560e9d132ee647e"}),
)
_MUSHROOMS = Collection("libsvm", _files(_LIBSVM, {"mushrooms": "2a52251de564d72e772b25211a84f5f8"}))

SOURCES: dict[str, Collection] = {
    "mnist": _MNIST,
    "qmnist-labels": _QMNIST_LABELS,
    "fashion-mnist": _FASHION_MNIST,
    "emnist-digits": _EMNIST,
    "emnist-balanced": _EMNIST,
    "emnist-byclass": _EMNIST,
    "cifar10": _CIFAR10,
    "ml-100k": _ML_100K,
    "a9a": _A9A,
    "mushrooms": _MUSHROOMS,
}
"""What ``fedfw data get NAME`` downloads."""
