"""The remedy for a name that does not exist."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence that names the nearest known word, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"There is {', '.join(map(repr, names))}." if names else "There is none."
