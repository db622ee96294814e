"""The environment variables that fedfw reads; others whose names begin with FEDFW_ are refused."""

import os
from collections.abc import Mapping

from fedfw.options import nearest

PREFIX = "FEDFW_"
VARIABLES = {
    "FEDFW_DATA": "the folder of the data sets",
    "FEDFW_DATA_MEMORY": "the memory in GiB that the reader of a data set may take",
    "FEDFW_FRAMEWORKS": "the folder of the scripts that run other frameworks, for 'fedfw bench'",
    "FEDFW_STATE": "the folder of a deployed client's memory",
    "FEDFW_CONSENT": "the file of what the owner of a deployed client's data allows",
}
"""Every variable by its name, and what it holds."""


def refuse_unknown_variables(environment: Mapping[str, str] | None = None) -> None:
    """Refuse variables whose names begin with FEDFW_ and that nothing reads.

    A misspelt FEDFW_CONSENT would otherwise leave a client without its owner's file.

    Parameters
    ----------
    environment : mapping of str to str, optional
        By default that of this process. A variable that is set to an empty text counts as not set.

    Raises
    ------
    ValueError
        With the name, the nearest known one, and all known ones.

    Examples
    --------
    >>> refuse_unknown_variables({"FEDFW_DATA": "/data", "PATH": "/bin"})
    >>> refuse_unknown_variables({"FEDFW_CONSNET": "/etc/consent.toml"})
    Traceback (most recent call last):
        ...
    ValueError: environment: FEDFW_CONSNET is not read (did you mean 'FEDFW_CONSENT'?), expected one
    of FEDFW_DATA, FEDFW_DATA_MEMORY, FEDFW_FRAMEWORKS, FEDFW_STATE, FEDFW_CONSENT: unset it
    """
    if environment is None:
        environment = os.environ
    for name, value in environment.items():
        if not name.startswith(PREFIX) or name in VARIABLES or value == "":
            continue
        raise ValueError(
            f"environment: {name} is not read{nearest(name, VARIABLES)}, expected one of "
            f"{', '.join(VARIABLES)}: unset it"
        )


def read_variable(name: str) -> str:
    """Return the value of one of `VARIABLES`, an empty text where it is not set.

    Parameters
    ----------
    name : str
        A key of `VARIABLES`.

    Raises
    ------
    ValueError
        If another variable whose name begins with FEDFW_ is set.
    """
    if name not in VARIABLES:
        raise KeyError(name)
    refuse_unknown_variables()
    return os.environ.get(name, "")
