"""Text from outside of this program: what nodes can store, and how long it may be.

JSON can carry half of a character (U+D800), which no encoding can. Such a text is
refused, or replaced, where it enters, so that no later step meets it.
"""

from __future__ import annotations

import unicodedata

MOST_ID = 1024
"""The bytes of the longest task id. Celery's own ids have 36."""

MOST_TOLD = 500
"""The bytes that are kept of a text in which a server describes itself, or an error."""

_SHOWN = 60  # letters of a wrong one
_MOST_DIGITS = 18
_MOST_PORT = 65_535
_MOST_SECONDS = 1e10  # since 1970: the year 2286


def is_encodable(text: str) -> bool:
    """Tell whether UTF-8 can carry this text."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_line(text: object, most: int) -> bool:
    """Tell whether this is one line of text, of so many bytes, that UTF-8 can carry."""
    if type(text) is not str or "\n" in text or len(text) > most:
        return False
    return text.isascii() or (is_encodable(text) and len(text.encode()) <= most)


def is_id(text: object) -> bool:
    """Tell whether nodes can store this as a task id."""
    return bool(text) and is_line(text, MOST_ID)


def check_id(task_id: object) -> None:
    """Raise ValueError, unless nodes can store this as a task id."""
    if not is_id(task_id):
        raise ValueError(
            f"The task id {ascii(task_id)[:_SHOWN]} must be one line of text that "
            f"UTF-8 can carry, of at most {MOST_ID:,} bytes."
        )


def line_of(text: str, most: int) -> str:
    """Return a text as one line of valid UTF-8, cut to a number of bytes.

    A line break becomes a space, and what cannot be encoded a question mark.
    """
    if is_line(text, most):  # most are, and cost no copy
        return text
    cut = text[:most].replace("\n", " ").encode(errors="replace")[:most]
    return cut.decode(errors="ignore")


def printable(text: str, instead: str = "·") -> str:
    """Return the text without characters that could control a terminal or a log."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else instead for letter in text)


def fields_of(info: str) -> dict[str, str]:
    """Return the fields of a reply to INFO, each a printable line of `MOST_TOLD`."""
    pairs = (line.partition(":") for line in info.splitlines() if ":" in line)
    return {name: printable_line(value, MOST_TOLD) for name, _, value in pairs}


def printable_line(text: str, most: int) -> str:
    """Return one printable line of a text, with single spaces, cut to these bytes."""
    words = printable(text[: 2 * most], " ").split()
    return line_of(" ".join(words), most)


def width_of(text: str) -> int:
    """Return how many columns of a terminal a printable text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def cut_to(text: str, width: int, *, at_start: bool = False) -> str:
    """Return the part of a printable text that fits into so many columns.

    That is its start, or, where it is cut at its start, its end.
    """
    letters, taken = list(reversed(text) if at_start else text), 0
    for number, letter in enumerate(letters):
        taken += _columns(letter)
        if taken > width:
            del letters[number:]
            break
    return "".join(reversed(letters) if at_start else letters)


def _columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def number_in(text: str) -> int:
    """Return the whole number in a text; 0 if it has none, or one that is too large.

    A text with very many digits is an error of `int`.
    """
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else 0


def is_port(text: str) -> bool:
    """Tell whether this is the number of a port."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) <= _MOST_PORT


def seconds_in(text: str) -> float:
    """Return the seconds in a text, as a duration or since 1970; 0 if it has none.

    Infinity and far instants are errors of `datetime`.
    """
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds <= _MOST_SECONDS else 0.0


def on_nodes(some: int, nodes: int) -> str:
    """Return ``on 2 of 3 nodes``; of a single node or a store, ``on the node``."""
    return "on the node" if nodes == 1 else f"on {some} of {nodes} nodes"
