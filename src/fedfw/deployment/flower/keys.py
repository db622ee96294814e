"""Throw-away certificates and secrets for one machine, and keys by which clients and signers prove
who they are.
"""

import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from fedfw.rounds.files import owner_only


def make_certificates(folder: Path, host: str = "127.0.0.1") -> None:
    """Write ``ca.crt``, and ``server.pem`` with ``server.key`` signed by it, for a server at one
    address.

    Parameters
    ----------
    folder : Path
        Where the files go.
    host : str
        The server's address.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA(organization_name="fedfw", organization_unit_name="throw-away authority")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    server = authority.issue_cert(host, "localhost", common_name=host, not_after=tomorrow)
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    (folder / "server.pem").write_bytes(server.cert_chain_pems[0].bytes())
    _write_secret(folder / "server.key", server.private_key_pem.bytes())


def make_node_key(path: Path) -> None:
    """Write a client's private key to ``path`` and its public one to ``path.pub``, in OpenSSH's
    format.
    """
    _write_pair(path, ec.generate_private_key(ec.SECP384R1()))


def make_signing_key(path: Path) -> None:
    """Write a private key that signs bundles to ``path`` and its public one to ``path.pub``, in
    OpenSSH's format.
    """
    _write_pair(path, ed25519.Ed25519PrivateKey.generate())


def make_secret(path: Path) -> None:
    """Write a secret that a SuperLink and the executor beside it share."""
    _write_secret(path, secrets.token_hex(32).encode())


def _write_pair(path: Path, key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> None:
    """Write a private key that only its owner may read, and its public key beside it."""
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    _write_secret(path, private)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")


def _write_secret(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    with open(path, "xb", opener=owner_only) as file:
        file.write(data)
