"""The primitives that the protocol is composed of, behind one interface, and the real ones.

The real ones are those of the packages `cryptography` and `pycryptodome`. Tests put a small group,
a table of masks and a small field in their place and run the same protocol.
"""

from __future__ import annotations

import hashlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from fedfw.errors import missing_extra
from fedfw.secure_sums.errors import MissingKeysError, RangeError, ShareError, SignatureError
from fedfw.secure_sums.ring import Residues, Ring
from fedfw.secure_sums.wire import tagged

try:
    from Crypto.Protocol.SecretSharing import Shamir
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ModuleNotFoundError as error:
    raise missing_extra("secure sums", f"cryptography and pycryptodome ({error})", "flower") from (
        None
    )

_HALF = 16
_NONCE = 12


class Primitives(ABC):
    """The operations of the protocol on bytes; ``context`` separates their uses."""

    secret_bytes: int
    """Of a self-mask seed, and of the seed of a key."""
    public_bytes: int
    share_bytes: int
    sealed_bytes: int
    """Of two encrypted shares."""
    signature_bytes: int

    @abstractmethod
    def new_secret(self) -> bytes:
        """Return a fresh seed: of a self mask, or of a key."""

    @abstractmethod
    def public_key(self, secret: bytes) -> bytes:
        """Return the public key of a key seed."""

    @abstractmethod
    def agree(self, secret: bytes, public: bytes, context: bytes) -> bytes:
        """Return the seed that the owners of two keys share.

        Raises
        ------
        MissingKeysError
            If the public key is not usable.
        """

    @abstractmethod
    def mask(self, seed: bytes, context: bytes, ring: Ring, count: int) -> Residues:
        """Return ``count`` pseudo-random residues."""

    @abstractmethod
    def split(self, secret: bytes, threshold: int, count: int) -> list[bytes]:
        """Return the shares at 1, ..., ``count`` of which ``threshold`` open the secret."""

    @abstractmethod
    def combine(self, shares: Mapping[int, bytes]) -> bytes:
        """Return the secret from exactly ``threshold`` shares, by their positions."""

    @abstractmethod
    def seal(self, secret: bytes, public: bytes, context: bytes, plain: bytes) -> bytes:
        """Return ``plain`` encrypted and authenticated for the owner of ``public``."""

    @abstractmethod
    def unseal(self, secret: bytes, public: bytes, context: bytes, sealed: bytes) -> bytes:
        """Return what `seal` encrypted.

        Raises
        ------
        ShareError
            If it was encrypted by another key, in another context, or was changed.
        """

    @abstractmethod
    def public_identity(self, identity: bytes) -> bytes:
        """Return the public key of a signing key."""

    @abstractmethod
    def sign(self, identity: bytes, statement: bytes) -> bytes:
        """Return the signature of a statement."""

    @abstractmethod
    def verify(self, public: bytes, signature: bytes, statement: bytes) -> None:
        """Refuse a signature that the owner of ``public`` did not make of this statement.

        Raises
        ------
        SignatureError
            If it is not valid.
        """

    def check_value(self, secret: bytes, context: bytes) -> bytes:
        """Return a hash by which an opened self-mask seed is recognised (32 bytes)."""
        return hashlib.sha256(tagged("check", context, secret)).digest()


class RealPrimitives(Primitives):
    """X25519, Ed25519, HKDF and ChaCha20-Poly1305 of ``cryptography``; Shamir's scheme of
    ``pycryptodome`` on both halves of a secret.
    """

    secret_bytes = 32
    public_bytes = 32
    share_bytes = 2 * _HALF
    sealed_bytes = _NONCE + 2 * share_bytes + 16
    signature_bytes = 64

    def new_secret(self) -> bytes:
        return secrets.token_bytes(self.secret_bytes)

    def public_key(self, secret: bytes) -> bytes:
        return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()

    def agree(self, secret: bytes, public: bytes, context: bytes) -> bytes:
        try:
            other = X25519PublicKey.from_public_bytes(public)
            shared = X25519PrivateKey.from_private_bytes(secret).exchange(other)
        except ValueError:  # a point of small order
            raise MissingKeysError("a neighbour's public key is not usable") from None
        return _derive(shared, context)

    def mask(self, seed: bytes, context: bytes, ring: Ring, count: int) -> Residues:
        if ring.modulus & (ring.modulus - 1):
            raise RangeError(f"modulus {ring.modulus}, expected a power of two")
        # The key belongs to this mask alone, so a fixed nonce is used once.
        cipher = Cipher(ChaCha20(_derive(seed, tagged("mask", context)), bytes(16)), mode=None)
        stream = cipher.encryptor().update(bytes(count * ring.dtype.itemsize))
        numbers: Residues = np.frombuffer(stream, ring.dtype.newbyteorder("<")).astype(ring.dtype)
        numbers &= ring.dtype.type(ring.modulus - 1)
        return numbers

    def split(self, secret: bytes, threshold: int, count: int) -> list[bytes]:
        left = Shamir.split(threshold, count, secret[:_HALF], ssss=False)
        right = Shamir.split(threshold, count, secret[_HALF:], ssss=False)
        return [first + second for (_, first), (_, second) in zip(left, right, strict=True)]

    def combine(self, shares: Mapping[int, bytes]) -> bytes:
        left = [(at, share[:_HALF]) for at, share in shares.items()]
        right = [(at, share[_HALF:]) for at, share in shares.items()]
        return Shamir.combine(left, ssss=False) + Shamir.combine(right, ssss=False)

    def seal(self, secret: bytes, public: bytes, context: bytes, plain: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE)
        key = self.agree(secret, public, tagged("seal", context))
        return nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, context)

    def unseal(self, secret: bytes, public: bytes, context: bytes, sealed: bytes) -> bytes:
        key = self.agree(secret, public, tagged("seal", context))
        try:
            return ChaCha20Poly1305(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], context)
        except InvalidTag:
            raise ShareError("encrypted shares were changed, or are not from their dealer") from (
                None
            )

    def public_identity(self, identity: bytes) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()

    def sign(self, identity: bytes, statement: bytes) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(identity).sign(statement)

    def verify(self, public: bytes, signature: bytes, statement: bytes) -> None:
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
        except (InvalidSignature, ValueError):
            raise SignatureError("a signature is not valid for its owner and statement") from None


def _derive(secret: bytes, context: bytes) -> bytes:
    """Return a key of 32 bytes."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=context).derive(secret)


def public_identity(identity: bytes) -> bytes:
    """Return the public key of an owner's signing key, which the list of owners holds.

    Parameters
    ----------
    identity : bytes
        An Ed25519 private key, 32 bytes.

    Returns
    -------
    bytes
        The public key, 32 bytes.

    Examples
    --------
    >>> from fedfw.secure_sums import fingerprint, public_identity
    >>> fingerprint(public_identity(bytes(32)))[:8]
    '139e3940'
    """
    return RealPrimitives().public_identity(identity)
