"""Where the publishers serve the files, with checksums."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from posixpath import basename


@dataclass(frozen=True)
class Source:
    """A file to download.

    Parameters
    ----------
    url
        Its last part is the file's name.
    sha256
        Of the file as it is served, in hexadecimal digits. It is always checked, so the URL may be
        plain http.
    members
        Of an archive (.zip or .tar.gz): the base names of the files that are kept.
    inside
        The folder of the members in the archive: where they lie when a user has unpacked it
        himself.
    """

    url: str
    sha256: str
    members: tuple[str, ...] = ()
    inside: str = ""

    @property
    def file(self) -> str:
        return basename(self.url)


@dataclass(frozen=True)
class Collection:
    """The files that ``fedfw data get`` puts into a folder, and what the user should know about
    them.
    """

    folder: str
    sources: tuple[Source, ...]
    note: str = ""


def has_checksum(path: Path, sha256: str) -> bool:
    """Return whether a file has this SHA-256."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
QMNIST_FILES = ("qmnist-train-labels-idx2-int.gz", "qmnist-test-labels-idx2-int.gz")
EMNIST_FILES = ("emnist-digits.mat", "emnist-balanced.mat", "emnist-byclass.mat")
TCGA_BRCA_FILES = ("brca.csv", "train_test_split.csv")
HEART_DISEASE_FILES = (
    "processed.cleveland.data",
    "processed.hungarian.data",
    "processed.switzerland.data",
    "processed.va.data",
)
CIFAR10_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


# Publishers list MD5 or nothing. The SHA-256 of MNIST, QMNIST and the LIBSVM files were computed
# from copies with the known MD5, that of Shakespeare's text from a copy of the known length, those
# of TCGA-BRCA and of Heart Disease from copies with the known numbers of patients. Those of
# Fashion-MNIST, CIFAR-10 and MovieLens are what several public records give beside the published
# MD5, and that of EMNIST's archive is what MLDatasets.jl checks: these four were not at hand to be
# computed anew.
def _files(base: str, sha256: dict[str, str]) -> tuple[Source, ...]:
    return tuple(Source(base + file, checksum) for file, checksum in sha256.items())


_MNIST = Collection(
    "mnist",
    _files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        dict(
            zip(
                IDX_FILES,
                (
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                ),
                strict=True,
            )
        ),
    ),
    note="The publisher's own page no longer serves MNIST: this is PyTorch's mirror of the same "
    "files.",
)

_FASHION_MNIST = Collection(
    "fashion-mnist",
    _files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        dict(
            zip(
                IDX_FILES,
                (
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
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
                (
                    "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
                    "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
                ),
                strict=True,
            )
        ),
    ),
    note="These are the writers of MNIST's digits, for the partition writer of mnist.",
)

_EMNIST = Collection(
    "emnist",
    (
        Source(
            "https://biometrics.nist.gov/cs_links/EMNIST/matlab.zip",
            "e1fa805cdeae699a52da0b77c2db17f6feb77eed125f9b45c022e7990444df95",
            EMNIST_FILES,
            inside="matlab",
        ),
    ),
    note="One archive of about 700 MB has the digits, balanced and byclass splits, with the writer "
    "of each sample.",
)

_CIFAR10 = Collection(
    "cifar10",
    (
        Source(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
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
            "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
            ("u.data",),
            inside="ml-100k",
        ),
    ),
    note="MovieLens may not be redistributed: its terms are at "
    "https://files.grouplens.org/datasets/movielens/ml-100k-README.txt",
)

# The publishers of these list no checksums at all, so a mismatch may also mean that the publisher
# has changed a file.
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_A9A = Collection(
    "libsvm",
    _files(
        _LIBSVM,
        {
            "a9a": "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
            "a9a.t": "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
        },
    ),
)
_MUSHROOMS = Collection(
    "libsvm",
    _files(
        _LIBSVM, {"mushrooms": "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538"}
    ),
)

_SHAKESPEARE = Collection(
    "shakespeare",
    _files(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
        {"input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
    ),
)

_FLAMBY = "https://raw.githubusercontent.com/owkin/FLamby/main/flamby/datasets/fed_tcga_brca/"
_TCGA_BRCA = Collection(
    "tcga-brca",
    (
        Source(
            f"{_FLAMBY}brca.csv", "07cb53423f7d579d33cfdbf2cba57b2aee75318b85866c68ce39a75b1f1ba020"
        ),
        Source(
            f"{_FLAMBY}dataset_creation_scripts/train_test_split.csv",
            "1249c6543a4060ff0fdaf8510fc37017755836db6c9fc5e6af96057c36510990",
        ),
    ),
    note="These are clinical data of patients (TCGA, open access), as FLamby prepared them. Who "
    "uses them agrees to the GDC's data access terms, "
    "https://gdc.cancer.gov/access-data/data-access-policies: do not try to identify anybody.",
)

_HEART_DISEASE = Collection(
    "heart-disease",
    _files(
        "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
        dict(
            zip(
                HEART_DISEASE_FILES,
                (
                    "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
                    "31134d83efc3266e486acece5e259585d7a52f16afa5567f195e70a993327afe",
                    "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
                    "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
                ),
                strict=True,
            )
        ),
    ),
    note="Heart Disease by Janosi, Steinbrunn, Pfisterer and Detrano, UCI Machine Learning "
    "Repository, CC BY 4.0.",
)

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
    "shakespeare": _SHAKESPEARE,
    "tcga-brca": _TCGA_BRCA,
    "heart-disease": _HEART_DISEASE,
}
"""The downloads of ``fedfw data get NAME``."""
