"""Colors of lines for a terminal, and the only place at which a line is cleaned.

A key, a task id or the error of a node is a text of another program, and may contain
sequences that control a terminal. `painted` puts marks around a text, which no other
program can know: they have a random number of this process. `inked` then turns these
marks into colors, and replaces each other character that cannot be printed. So all
lines can be put together as plain text, and are cleaned once, before they are printed.
"""

from __future__ import annotations

import re
import secrets
import sys

from celery_redlock.basics.text import printable

_CODES = {"good": 32, "warning": 33, "bad": 31, "faint": 2}
_END = 0
_MARK = f"\x1b{secrets.token_hex(8)}."
_MARKS = re.compile(re.escape(_MARK) + r"(\d+);")


def is_at_terminal() -> bool:
    """Tell whether stdout is a terminal. It may be closed: then it is None."""
    return bool(sys.stdout and sys.stdout.isatty())


def painted(text: str, mood: str) -> str:
    """Mark a text for the color of a mood: good, warning, bad or faint."""
    code = _CODES.get(mood)
    return f"{_MARK}{code};{text}{_MARK}{_END};" if code and text else text


def inked(line: str, *, colors: bool) -> str:
    """Return a line as it is printed: with colors, or as plain text."""
    if line.isprintable():  # most are
        return line
    if "\n" in line:
        return "\n".join(inked(one, colors=colors) for one in line.split("\n"))
    texts = _MARKS.split(line)
    texts[::2] = map(printable, texts[::2])
    texts[1::2] = [f"\x1b[{code}m" if colors else "" for code in texts[1::2]]
    return "".join(texts)
