"""App bundles and who vouches for them: what a SuperNode runs is decided by a signature, not by
its submission.

A folder holds bundles and, beside each, one file for every signature::

    fedfw.federation.1.0.0.fab
    fedfw.federation.1.0.0.fab.fpk_0123456789abcdef.sig

Signatures are Ed25519, over what Flower checks: the bundle's SHA-256 and the time of signing. They
are made here because Flower's own command (``flwr app review``) signs only apps that are published
on Flower's platform.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import time
import zlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import get_fab_config, get_metadata_from_config
from flwr.common.constant import FAB_MAX_SIZE
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign
from flwr.supercore.utils import parse_app_spec

from fedfw.deployment.files import open_regular
from fedfw.rounds.files import write_atomically

_MOST_UNPACKED = 64 << 20
"""Bytes of all files of a bundle together, unpacked."""
_MOST_FILES = 10_000
"""Each entry of an archive's directory becomes an object of half a kilobyte when the archive is
opened.
"""
_ENTRY = b"PK\1\2"
"""Begins each entry of an archive's directory."""
_PROJECT = "pyproject.toml"
_LARGEST_PROJECT = 2**20  # bytes
_LARGEST_SIGNATURE = 2**12  # bytes
_MOST_SIGNATURES = 100
_READ_ONLY = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
_UNREADABLE = (
    BadZipFile,
    KeyError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    EOFError,
    OSError,
    zlib.error,
)
"""Errors of reading an archive that is damaged, encrypted, packed in another way or without its
configuration.
"""


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
        """Return a bundle from its file, or from an app's folder, which is packed.

        Parameters
        ----------
        path : Path
            A file that ends in ``.fab``, or a folder with a ``pyproject.toml``.

        Raises
        ------
        ValueError
            If it is neither, or too large, or names no app.
        """
        if not path.exists():
            raise ValueError(f"{path} is missing, expected an app's folder or a bundle (.fab)")
        if path.is_dir():
            return cls.of(build_fab_from_disk(path), path)
        with open(path, "rb") as file:
            return cls.of(_read_at_most(file, FAB_MAX_SIZE, path), path)

    @classmethod
    def of(cls, data: bytes, path: Path) -> Bundle:
        """Return a bundle from its bytes.

        Parameters
        ----------
        data : bytes
            What its file holds.
        path : Path
            Where they come from, for the error.

        Raises
        ------
        ValueError
            If they are no archive with a valid ``pyproject.toml``.
        """
        entries = data.count(_ENTRY)
        if entries > _MOST_FILES:
            raise ValueError(f"{path} has {entries} files, expected at most {_MOST_FILES}")
        try:
            with ZipFile(BytesIO(data)) as archive:
                unpacked = sum(info.file_size for info in archive.infolist())
                if unpacked > _MOST_UNPACKED:
                    raise ValueError(
                        f"it unpacks to {unpacked / 2**20:.0f} MiB, expected at most "
                        f"{_MOST_UNPACKED >> 20} MiB: "
                        "an app is code, and data stay with their owners"
                    )
                size = archive.getinfo(_PROJECT).file_size
            if size > _LARGEST_PROJECT:
                raise ValueError(
                    f"its {_PROJECT} has {size:,} bytes, expected at most {_LARGEST_PROJECT:,}"
                )
            name, version = get_metadata_from_config(get_fab_config(data))
            parse_app_spec(f"@{name}=={version}")  # refuses names that could be no file's name
        except _UNREADABLE as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(
                f"{path} is no bundle ({reason}), expected a file that 'fedfw deploy sign' or "
                "'flwr build' wrote"
            ) from None
        return cls(f"@{name}", version, data)

    @property
    def spec(self) -> str:
        """Return what ``flwr run`` needs: ``@fedfw/federation==1.0.0``."""
        return f"{self.app}=={self.version}"

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the bundle, in hex."""
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
                f"{path} has other contents than this app: a version that was signed does not "
                "change. Expected a new version in pyproject.toml"
            )
        signed_at = int(time.time())
        signed = key.sign(create_message_to_sign(bytes.fromhex(self.digest), signed_at))
        record = {
            "public_key_id": key_id(key.public_key()),
            "signature": base64.urlsafe_b64encode(signed).rstrip(b"=").decode("ascii"),
            "signed_at": signed_at,
        }
        signature = path.with_name(f"{path.name}.{record['public_key_id']}.sig")
        for file, content in ((path, self.data), (signature, json.dumps(record).encode())):
            write_atomically(file, content)
            # What was signed does not change.
            file.chmod(stat.S_IMODE(file.stat().st_mode) & _READ_ONLY)
        return path


def bundle_name(app: str, version: str) -> str:
    """Return the name of a bundle's file.

    Examples
    --------
    >>> bundle_name("@fedfw/federation", "1.0.0")
    'fedfw.federation.1.0.0.fab'
    """
    app, version_ = parse_app_spec(f"{app}=={version}")
    return f"{app[1:].replace('/', '.')}.{version_}.fab"


def signatures(path: Path) -> list[dict[str, object]]:
    """Return the signatures beside a bundle's file, as Flower reads them.

    Raises
    ------
    ValueError
        If one of them is damaged, or could have been put there by another user.
    """
    files = sorted(path.parent.glob(f"{path.name}.*.sig"))
    if len(files) > _MOST_SIGNATURES:
        raise ValueError(f"{path} has {len(files)} signatures, expected at most {_MOST_SIGNATURES}")
    records = []
    for file in files:
        try:
            # Unpacking refuses JSON that is no table.
            records.append({**json.loads(read_shared_file(file, _LARGEST_SIGNATURE))})
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{file} is no signature ({error}), expected a file that 'fedfw deploy sign' wrote"
            ) from None
    return records


def read_shared_file(path: Path, most: int = FAB_MAX_SIZE) -> bytes:
    """Return the bytes of a file that no other user can have written.

    Parameters
    ----------
    path : Path
        A regular file; a symbolic link is refused.
    most : int
        How many bytes it may have.

    Raises
    ------
    ValueError
        If it is of another kind, if others may write it, or if it is larger.
    OSError
        If it cannot be read.
    """
    with open(path, "rb", opener=open_regular) as file:
        if os.fstat(file.fileno()).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError(f"others can write {path}: chmod 444")
        return _read_at_most(file, most, path)


def _read_at_most(file: IO[bytes], most: int, path: Path) -> bytes:
    data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path} has more than {most:,} bytes, expected at most so many")
    return data


def key_id(key: Ed25519PublicKey) -> str:
    """Return the name of a key: the beginning of its hash.

    Examples
    --------
    >>> key_id(Ed25519PublicKey.from_public_bytes(bytes(32)))
    'fpk_66687aadf862bd77'
    """
    return f"fpk_{hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]}"


def trust_line(key: Ed25519PublicKey) -> str:
    """Return the line by which an owner lets his node run what this key has signed, for
    ``--trusted-entities``.

    Examples
    --------
    >>> trust_line(Ed25519PublicKey.from_public_bytes(bytes(32)))
    "fpk_66687aadf862bd77: 'ssh-ed25519
    AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'"
    """
    public = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")
    return f"{key_id(key)}: '{public}'"


def read_signing_key(path: Path) -> Ed25519PrivateKey:
    """Return a private key that ``ssh-keygen -t ed25519 -N ""`` has made.

    Parameters
    ----------
    path : Path
        The private half. It has no passphrase: reading one would need a further package.
    """
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f'{path} is no key, expected one of ssh-keygen -t ed25519 -N "" ({error})'
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(
            f'{path} is a key of another kind, expected one of ssh-keygen -t ed25519 -N ""'
        )
    return key
