"""App bundles and who vouches for them: what a SuperNode runs is decided by a signature, not by whoever submits it.

A folder holds bundles and, beside each, one file for every signature::

    fedfw.federation.1.0.0.fab
    fedfw.federation.1.0.0.fab.fpk_0123456789abcdef.sig

Signatures are Ed25519, over what Flower checks: the bundle's SHA-256 and the time of signing.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import get_fab_config, get_metadata_from_config
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign
from flwr.supercore.utils import parse_app_spec

from fedfw.rounds.files import write_atomically

_MOST_UNPACKED = 64 << 20
"""Bytes of all files of a bundle together, unpacked."""
_MOST_FILES = 10_000
"""Each entry of an archive's directory becomes an object of half a kilobyte when the archive is opened."""
_ENTRY = b"PK\1\2"
"""Begins each entry of an archive's directory."""


@dataclass(frozen=True)
class Bundle:
    """An app as it travels.

    Parameters
    ----------
    app : str
        Its publisher and name: ``@fedfw/federation``.
    version : str
        Three numbers: ``1.0.0``.
    data : bytes
        The bundle itself.
    """

    app: str
    version: str
    data: bytes

    @classmethod
    def read(cls, path: Path) -> Bundle:
        """From a bundle's file, or from an app's folder, which is packed.

        Parameters
        ----------
        path : Path
            A file that ends in ``.fab``, or a folder with a ``pyproject.toml``.
        """
        if not path.exists():
            raise ValueError(f"app={str(path)!r}, expected an app's folder or a bundle (.fab)")
        data = build_fab_from_disk(path) if path.is_dir() else path.read_bytes()
        refuse_large(data, path)
        name, version = get_metadata_from_config(get_fab_config(data))
        parse_app_spec(f"@{name}=={version}")  # refuses names that could be no file's name
        return cls(f"@{name}", version, data)

    @property
    def spec(self) -> str:
        """What ``flwr run`` is told: ``@fedfw/federation==1.0.0``."""
        return f"{self.app}=={self.version}"

    @property
    def digest(self) -> str:
        """The SHA-256 of the bundle, in hex."""
        return hashlib.sha256(self.data).hexdigest()

    def sign(self, key: Ed25519PrivateKey, folder: Path) -> Path:
        """Put the bundle into a folder, with a signature beside it.

        Parameters
        ----------
        key : Ed25519PrivateKey
            Whose owner has read the bundle and vouches for it.
        folder : Path
            It may hold the same bundle with other people's signatures; they stay.

        Returns
        -------
        Path
            The bundle's file.
        """
        path = folder / bundle_name(self.app, self.version)
        if path.exists() and path.read_bytes() != self.data:
            raise ValueError(
                f"{path} has other contents than this app: a version that was signed does not change. "
                "Expected a new version in pyproject.toml"
            )
        at = int(time.time())
        signed = key.sign(create_message_to_sign(bytes.fromhex(self.digest), at))
        record = {
            "public_key_id": key_id(key.public_key()),
            "signature": base64.urlsafe_b64encode(signed).rstrip(b"=").decode("ascii"),
            "signed_at": at,
        }
        write_atomically(path, self.data)
        write_atomically(path.with_name(f"{path.name}.{record['public_key_id']}.sig"), json.dumps(record).encode())
        return path


def refuse_large(data: bytes, path: Path) -> None:
    """Refuse a bundle whose files unpacked are too large, before anything of it is unpacked.

    Parameters
    ----------
    data : bytes
        The bundle.
    path : Path
        Where it was read from, for the error.
    """
    entries = data.count(_ENTRY)
    if entries > _MOST_FILES:
        raise ValueError(f"app={str(path)!r} has {entries} files, expected at most {_MOST_FILES}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(
            f"app={str(path)!r} is no bundle ({error}), expected one that 'fedfw deploy sign' wrote"
        ) from None
    if unpacked > _MOST_UNPACKED:
        raise ValueError(
            f"app={str(path)!r} unpacks to {unpacked / 2**20:.0f} MiB, expected at most {_MOST_UNPACKED >> 20} MiB: "
            "an app is code, and data stay with their owners"
        )


def bundle_name(app: str, version: str) -> str:
    """The name of a bundle's file.

    Examples
    --------
    >>> bundle_name("@fedfw/federation", "1.0.0")
    'fedfw.federation.1.0.0.fab'
    """
    app, version_ = parse_app_spec(f"{app}=={version}")
    return f"{app[1:].replace('/', '.')}.{version_}.fab"


def signatures(path: Path) -> list[dict[str, object]]:
    """The signatures beside a bundle's file, as Flower wants them."""
    return [json.loads(file.read_text()) for file in sorted(path.parent.glob(f"{path.name}.*.sig"))]


def key_id(key: Ed25519PublicKey) -> str:
    """What a key is called: the beginning of its hash.

    Examples
    --------
    >>> key_id(Ed25519PublicKey.from_public_bytes(bytes(32)))
    'fpk_66687aadf862bd77'
    """
    return f"fpk_{hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]}"


def trust_line(key: Ed25519PublicKey) -> str:
    """The line by which an owner lets his node run what this key has signed, for ``--trusted-entities``.

    Examples
    --------
    >>> trust_line(Ed25519PublicKey.from_public_bytes(bytes(32)))
    "fpk_66687aadf862bd77: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'"
    """
    return f"{key_id(key)}: '{key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode('ascii')}'"


def read_signing_key(path: Path) -> Ed25519PrivateKey:
    """A private key that ``ssh-keygen -t ed25519 -N ""`` has made.

    Parameters
    ----------
    path : Path
        The private half. It has no passphrase: reading one would need a further package.
    """
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise ValueError(f'key={str(path)!r}, expected one of ssh-keygen -t ed25519 -N "" ({error})') from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f'key={str(path)!r} is of another kind, expected one of ssh-keygen -t ed25519 -N ""')
    return key
