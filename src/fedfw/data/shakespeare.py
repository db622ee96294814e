"""Tiny Shakespeare: speeches, each after the name of its speaker; a speaker who says enough is a
client.
"""

import re
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedfw.data.archives import open_packed
from fedfw.data.base import Data, Part, Request

ALPHABET = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
CHARACTERS = 1_115_394
"""Of the whole file: nothing else would show that it was cut off."""
CONTEXT = 96
LONGEST_CONTEXT = 256
LEAST = 3_000
"""Characters of a speaker that is a client: the last tenth then has a window of the longest
context.
"""

_NAME = re.compile(rb"(?:(?<=\n\n)|\A)([^\n]+):\n")
_NUMBERS = np.full(256, -1, np.int8)
_NUMBERS[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))


def load_shakespeare(request: Request) -> Data:
    """Load windows of the speakers' own texts; the argument is how many characters a model sees, 96
    unless it is given.
    """
    text = request.argument or str(CONTEXT)
    context = int(text) if text.isdecimal() and len(text) < 4 else 0  # 0 is refused below
    if not 1 <= context <= LONGEST_CONTEXT:
        raise ValueError(
            f"shakespeare:{text}, expected a context of 1 to {LONGEST_CONTEXT} characters"
        )
    (path,) = request.files
    speakers = [
        speech for speech in read_speakers(path, CHARACTERS).values() if len(speech) >= LEAST
    ]
    if not speakers:
        raise ValueError(f"{path} is damaged: expected a speaker with {LEAST} characters or more")
    return Data(request.name, *cut_windows(speakers, context), len(ALPHABET))


def read_speakers(path: Path, characters: int) -> dict[str, Tensor]:
    """Return what each speaker says, (characters,) int8 places in `ALPHABET`, by name in the order
    of their first speeches.

    A speech is all that stands between the line "Name:", which begins the file or follows an empty
    line, and the next such line. A text that is not of so many ``characters`` or that has others
    than those is a ValueError.
    """
    with open_packed(path) as stream:
        text = stream.read(characters + 1)
    if len(text) != characters:
        length = "more" if len(text) > characters else len(text)
        raise ValueError(f"{path} is damaged: {length} characters, expected {characters}")
    codes = _NUMBERS[np.frombuffer(text, np.uint8)]
    if (codes < 0).any():
        place = int((codes < 0).argmax())
        raise ValueError(
            f"{path} is damaged: byte {text[place]} at {place}, expected one of {len(ALPHABET)} "
            "characters"
        )
    names = list(_NAME.finditer(text))
    ends = [name.start() for name in names] + [characters]
    speeches: dict[str, list[Tensor]] = {}
    for name, end in zip(names, ends[1:], strict=True):
        speeches.setdefault(name[1].decode(), []).append(torch.from_numpy(codes[name.end() : end]))
    return {name: torch.cat(pieces) for name, pieces in speeches.items()}


def cut_windows(texts: Sequence[Tensor], context: int) -> tuple[Part, Part]:
    """Return windows for training and for testing, with the number of the text that each is from as
    its ``speaker``.

    A window has context + 1 characters; its inputs are all but the last, its targets all but the
    first. The last tenth of a text is for testing, in windows that do not overlap. Those for
    training begin at every sixth of the context, so that minibatches of them are nearly windows
    from anywhere.
    """
    # Of each text: its first character among all texts, and how many characters are for training.
    begins = list(accumulate(map(len, texts[:-1]), initial=0))
    sizes = [len(text) - len(text) // 10 for text in texts]
    train = []
    test = []
    for begin, text, size in zip(begins, texts, sizes, strict=True):
        train.append((begin, text[:size]))
        test.append((begin + size, text[size:]))
    return _part(train, context + 1, max(1, context // 6)), _part(test, context + 1, context + 1)


def _part(pieces: Sequence[tuple[int, Tensor]], length: int, stride: int) -> Part:
    """Return the windows of ``length`` characters, ``stride`` apart, of pieces of text, one for
    each speaker: pairs of its first character's place among all texts and its characters (c,).
    """
    windows = [text.unfold(0, length, stride) for _, text in pieces]  # (windows, length) each
    counts = torch.tensor([len(of_speaker) for of_speaker in windows])
    starts = [
        begin + stride * torch.arange(len(of_speaker))
        for (begin, _), of_speaker in zip(pieces, windows, strict=True)
    ]
    speakers = torch.arange(len(pieces)).repeat_interleave(counts)
    inputs = torch.cat([of_speaker[:, :-1] for of_speaker in windows])
    targets = torch.cat([of_speaker[:, 1:] for of_speaker in windows])
    return Part(inputs, targets, {"speaker": speakers}, starts=torch.cat(starts))
