"""How an option is declared: once, where it belongs, with its type, its range, its help and its
default.

A field of a dataclass is an option when its annotation carries a description made by `option`:

    rounds: Annotated[int, option("number of rounds", ge=1)] = 100

Everything else is worked out from that line: the check of the Python keyword, the key of a TOML
file and of a deployed app (``rounds``, dashes for underscores), the flag (``--rounds``), its help
text, and the sentence of a refusal ("rounds=0, expected a whole number of at least 1"). Values are
validated by pydantic in its strict mode.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Function = TypeVar("Function", bound=Callable[..., Any])
LARGEST = 1e38
LARGEST_WHOLE = 10**12
"""Numbers and whole numbers whose declaration states no upper limit are at most this large."""
_LIMITS = (("ge", "of at least {}"), ("gt", "above {}"), ("le", "at most {}"), ("lt", "below {}"))


@dataclass(frozen=True)
class Limits:
    """Bounds of a value in the words of pydantic, which is imported with the first check: that
    takes a while.
    """

    bounds: tuple[tuple[str, Any], ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import Field

        return handler.generate_schema(Annotated[source, Field(**dict(self.bounds))])


@dataclass(frozen=True)
class Declaration(Limits):
    """The description of a field by `option`."""

    help: str
    expected: str
    otherwise: str
    scope: str


def limits(**bounds: Any) -> Limits:
    """Return bounds of one member of a union, such as ``Annotated[int, limits(ge=1)] | None``."""
    return Limits(tuple(bounds.items()))


def option(
    help_: str, *, expected: str | None = None, otherwise: str = "", scope: str = "", **bounds: Any
) -> Any:
    """Describe an option; the result stands in the annotation of a dataclass field.

    Parameters
    ----------
    help_ : str
        What the option does, for help texts, without the default.
    expected : str, optional
        What a refusal says was expected. By default it is worked out from the type and the limits.
    otherwise : str, optional
        What happens where the option is left open, in words, if its default is None.
    scope : str, optional
        ``"python"`` for an option that has no form as text, so that it is neither a flag nor a key
        of a file.
    **bounds
        pydantic's limits, such as ``ge=1`` or ``lt=2``.

    Returns
    -------
    Declaration
    """
    return Declaration(tuple(bounds.items()), help_, expected or "", otherwise, scope)


@dataclass(frozen=True)
class Option:
    """One declared option.

    Parameters
    ----------
    name : str
        The Python keyword, such as ``local_steps``.
    help : str
        What it does.
    default : object
        Its default.
    expected : str
        What a refusal says was expected.
    textual : bool
        Whether it can be written as text, in a file or as a flag.
    annotation : object
        Its type, which pydantic validates against.
    otherwise : str
        What happens where it is left open, in words.
    limited : bool
        Whether its declaration states an upper limit.
    """

    name: str
    help: str
    default: Any
    expected: str
    textual: bool
    annotation: Any
    otherwise: str = ""
    limited: bool = False

    @property
    def key(self) -> str:
        """Return the key in TOML files and in a deployed app; with two dashes in front it is the
        flag.
        """
        return self.name.replace("_", "-")

    @property
    def sentence(self) -> str:
        """Return what it does, and what happens where it is left open, as a sentence."""
        text = f"{self.help} ({self.otherwise})" if self.otherwise else self.help
        return f"{text[0].upper()}{text[1:]}."

    @property
    def is_flag(self) -> bool:
        """Return whether the option is either on or off."""
        return _plain_types(self.annotation) == {bool}

    def check(self, value: Any, source: str = "") -> Any:
        """Return the value if it is allowed.

        Raises
        ------
        ValueError
            With the value and what was expected; ``source`` says where the value stood.
        """
        from pydantic import ValidationError

        expected = self.expected
        try:  # pydantic converts the value, or raises
            checked = _validator(self.annotation)(value)
        except ValidationError:
            pass
        else:
            most = self._most(checked)  # numbers without an upper limit of their own have one
            if most is None or abs(checked) <= most:
                return checked
            expected = f"{expected} and at most {most:g}"
        shown = f"{source}: {self.key} = {value!r}" if source else f"{self.name}={value!r}"
        raise ValueError(f"{shown}, expected {expected}")

    def _most(self, value: Any) -> float | None:
        """Return how large a number may be whose declaration does not say it; None for what is no
        such number.
        """
        if self.limited or isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return LARGEST_WHOLE if isinstance(value, int) else LARGEST

    def parse(self, text: Any, source: str) -> Any:
        """Return a value from a flag or a file if it is allowed; text is read as a truth value or a
        number where the option's type has one. ``source`` says where it stood.
        """
        kinds = _plain_types(self.annotation)
        if isinstance(text, str):
            if bool in kinds and text in ("true", "false"):
                text = text == "true"
            elif kinds & {int, float}:
                text = parse_number(text)
                if isinstance(text, float) and float not in kinds and text.is_integer():
                    text = int(text)  # a whole number such as 1e3
        if (
            isinstance(text, int)
            and not isinstance(text, bool)
            and float in kinds
            and int not in kinds
        ):
            text = float(text)
        return self.check(text, source)


@lru_cache
def options_of(cls: Any) -> dict[str, Option]:
    """Return the options that a dataclass declares, by name.

    Parameters
    ----------
    cls : type
        A dataclass.

    Returns
    -------
    dict of str to Option
        In the order of the fields.
    """
    hints = get_type_hints(cls, include_extras=True)
    options = {}
    for field in fields(cls):
        metadata = getattr(hints[field.name], "__metadata__", ())
        info = next((entry for entry in metadata if isinstance(entry, Declaration)), None)
        if info is None:  # a field that is no option
            continue
        options[field.name] = Option(
            name=field.name,
            help=info.help,
            default=field.default if field.default is not MISSING else None,
            expected=info.expected or _expected(hints[field.name], info),
            textual=info.scope != "python",
            annotation=hints[field.name],
            otherwise=info.otherwise,
            limited=not {"le", "lt"}.isdisjoint(dict(info.bounds)),
        )
    return options


def check_options(instance: Any) -> None:
    """Refuse an instance of a dataclass with an option that is out of its range.

    Parameters
    ----------
    instance : object
        Every declared option of its class is checked.

    Raises
    ------
    ValueError
        With the name, the value and what was expected.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from typing import Annotated
    >>> @dataclass(frozen=True)
    ... class Length:
    ...     rounds: Annotated[int, option("number of rounds", ge=1)] = 100
    >>> check_options(Length(rounds=0))
    Traceback (most recent call last):
        ...
    ValueError: rounds=0, expected a whole number of at least 1
    """
    kind: Any = type(instance)
    for name, declared in options_of(kind).items():
        declared.check(getattr(instance, name))


def declare_keywords(*declared: type) -> Callable[[Function], Function]:
    """Return a decorator for functions that pass ``**options`` on: signature and documentation come
    from the declarations.

    The function's docstring has a line ``{options}`` where the parameters go.
    """

    def decorate(function: Function) -> Function:
        """Add the declared options to the function's signature, and their lines to its
        docstring.
        """
        listed = [entry for cls in declared for entry in options_of(cls).values()]
        signature = inspect.signature(function)
        parameters = [  # all but **options
            p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        named = {parameter.name for parameter in parameters}
        keywords = [
            inspect.Parameter(
                entry.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=entry.default,
                annotation=entry.annotation,
            )
            for entry in listed
            if entry.name not in named
        ]
        lines = (
            f"    {entry.name} : {entry.expected}\n        {entry.sentence}" for entry in listed
        )
        extended = signature.replace(parameters=[*parameters, *keywords])
        function.__signature__ = extended  # type: ignore[attr-defined]
        function.__doc__ = (function.__doc__ or "").replace("{options}", "\n".join(lines).lstrip())
        return function

    return decorate


def validate_keywords(
    function: str, given: Iterable[str], *declared: type, own: Iterable[str] = ()
) -> None:
    """Raise TypeError for the first of the ``given`` keywords that neither the classes ``declared``
    nor ``own``, the function's own names, have; the message names the nearest.
    """
    known = [*own, *(name for cls in declared for name in options_of(cls))]
    for name in given:
        if name not in known:
            raise TypeError(
                f"{function} has no option {name!r}{nearest(name, known)}, expected "
                f"{', '.join(known)}"
            )


def parse_table(
    declared: Iterable[Option], table: Mapping[str, Any], source: str, more: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the checked values of a table by the names of their options; an unknown key raises
    ValueError, which names the nearest known one.

    ``source`` says where the table stands. Keys in ``more`` are allowed, and left out.
    """
    options = {entry.key: entry for entry in declared if entry.textual}
    known = [*options, *more]
    for key in table:
        if key not in known:
            raise ValueError(
                f"{source}: unknown key {key!r}{nearest(key, known)}, expected one of "
                f"{', '.join(known)}"
            )
    return {
        options[key].name: options[key].parse(value, source)
        for key, value in table.items()
        if key in options
    }


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the question "did you mean ...?" for a name that is nearly one of the known ones, else
    nothing.
    """
    close = get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@lru_cache(maxsize=1024)
def _validator(annotation: Any) -> Callable[[Any], Any]:
    from pydantic import ConfigDict, TypeAdapter

    strict = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
    return TypeAdapter(annotation, config=strict).validate_python


def _plain_types(annotation: Any) -> set[Any]:
    """Return the types of an annotation: those of a union's members, without None and without the
    metadata of ``Annotated``.
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        return _plain_types(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return {kind for part in get_args(annotation) for kind in _plain_types(part)}
    if annotation is NoneType:
        return set()
    return {annotation}


def _expected(annotation: Any, info: Declaration) -> str:
    """Return in words what the values of an annotation have to be, such as "a number of at least
    0".
    """
    kinds = _plain_types(annotation)
    choices = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    if choices:
        return f"one of {', '.join(map(str, choices))}"
    if kinds == {bool}:
        return "true or false"
    bounds = dict(info.bounds)
    stated = [phrase.format(bounds[name]) for name, phrase in _LIMITS if name in bounds]
    if kinds <= {int, float}:
        number = "a whole number" if kinds <= {int} else "a number"
        return " ".join([number, " and ".join(stated)]).strip()
    if kinds == {str}:
        return "text"
    return str(annotation)


def parse_number(text: str) -> int | float | str:
    """Return a whole number, else a number, else the text itself."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
