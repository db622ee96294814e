"""The named errors of the protocol: every refusal of a client or the server is one of them."""


class SecureSumError(ValueError):
    """The base class of all refusals of the protocol.

    Examples
    --------
    >>> from fedfw.secure_sums import RoundUsedError, SecureSumError
    >>> issubclass(RoundUsedError, SecureSumError)
    True
    """


class MalformedMessageError(SecureSumError):
    """Bytes are not the encoding of the expected message, or its fields have wrong lengths."""


class PhaseError(SecureSumError):
    """A message does not belong to the present phase, or comes twice, or from an unknown client."""


class TermsError(SecureSumError):
    """The terms of a batch contradict themselves, or would not hide what they promise to hide."""


class ConsentError(SecureSumError):
    """The terms of a batch go beyond what the owner's consent allows."""


class SignatureError(SecureSumError):
    """A signature does not belong to its owner and statement, or an opening to its commitment."""


class MissingKeysError(SecureSumError):
    """The keys or shares of a neighbour that takes part in a round are missing."""


class ListError(SecureSumError):
    """A list of dealers or survivors is too short, lacks its reader, or names strangers."""


class SecondListError(SecureSumError):
    """A client has signed another list for this round already."""


class TooFewSignaturesError(SecureSumError):
    """Fewer clients than required signed the same list of survivors."""


class RoundUsedError(SecureSumError):
    """The masks of this round, or of a later one, have been used already."""


class ShareError(SecureSumError):
    """Shares were revealed that do not open the secret that their dealer published a check of."""


class TooFewSharesError(SecureSumError):
    """Fewer shares than the threshold were revealed of a secret that the sum needs."""


class RangeError(SecureSumError):
    """Numbers to be summed lie outside of the range for which the modulus was chosen."""


class EncodingError(SecureSumError):
    """An atom or a vector has no exact integer encoding of the requested kind."""


class JournalError(SecureSumError):
    """A client's journal is damaged, belongs to another run, or is in use by another process."""


class RollbackError(JournalError):
    """A client's disk shows an earlier time than its witness, its state or the server remembers."""
