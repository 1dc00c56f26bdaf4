"""The remedy for a name that does not exist."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is nearest; ``""`` if none is near.

    Capital letters make no difference.
    """
    words = {one.lower(): one for one in known}
    return "".join(words[n] for n in difflib.get_close_matches(word.lower(), words, 1))


def did_you_mean(
    word: str, known: Iterable[str], write: Callable[[str], str] = str
) -> str:
    """Return a sentence that names the nearest known word, or all of them.

    ``write`` returns how a word is written.
    """
    names = sorted(known)
    if near := nearest(word, names):
        return f"Did you mean {write(near)!r}?"
    if not names:
        return "There is none."
    written = ", ".join(repr(write(name)) for name in names)
    return f"There {'is' if len(names) == 1 else 'are'} {written}."


def check_word(name: str, value: object, known: Collection[str]) -> None:
    """Refuse a value of an option that is none of the words which the option takes."""
    if value not in known:
        hint = did_you_mean(str(value), known)
        raise ConfigurationError(f"{name}={value!r} does not exist. {hint}")
