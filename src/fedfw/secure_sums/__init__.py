"""Secure sums: the server learns the sum of clients' integers, and nothing else about them.

The protocol is that of Bonawitz et al. (CCS 2017), on the sparse graph of Bell et al. (CCS 2020)
where there are many clients. Clients and server are state machines over bytes; how these travel is
not decided here. `docs/secure-sums.md` has the steps and what they hide from whom.
"""

from fedfw.secure_sums.client import Client
from fedfw.secure_sums.encodings import AtomEncoding, Encoded, Encoding, FixedPointGrid, encode
from fedfw.secure_sums.errors import (
    ConsentError,
    EncodingError,
    JournalError,
    ListError,
    MalformedMessageError,
    MissingKeysError,
    PhaseError,
    RangeError,
    RollbackError,
    RoundUsedError,
    SecondListError,
    SecureSumError,
    ShareError,
    SignatureError,
    TermsError,
    TooFewSharesError,
    TooFewSignaturesError,
)
from fedfw.secure_sums.graph import Batch, RoundPlan
from fedfw.secure_sums.journal import FileJournal, Journal
from fedfw.secure_sums.primitives import Primitives, RealPrimitives, public_identity
from fedfw.secure_sums.ring import Ring
from fedfw.secure_sums.server import SecureSum, Server
from fedfw.secure_sums.states import ClientState, Phase, ServerState
from fedfw.secure_sums.terms import Consent, Terms, fingerprint

__all__ = [
    "AtomEncoding",
    "Batch",
    "Client",
    "ClientState",
    "Consent",
    "ConsentError",
    "Encoded",
    "Encoding",
    "EncodingError",
    "FileJournal",
    "FixedPointGrid",
    "Journal",
    "JournalError",
    "ListError",
    "MalformedMessageError",
    "MissingKeysError",
    "Phase",
    "PhaseError",
    "Primitives",
    "RangeError",
    "RealPrimitives",
    "Ring",
    "RollbackError",
    "RoundPlan",
    "RoundUsedError",
    "SecondListError",
    "SecureSum",
    "SecureSumError",
    "Server",
    "ServerState",
    "ShareError",
    "SignatureError",
    "Terms",
    "TermsError",
    "TooFewSharesError",
    "TooFewSignaturesError",
    "encode",
    "fingerprint",
    "public_identity",
]
