r"""Patterns of keys, as Redis understands them, matched without backtracking.

=========  =========================================================
``*``      any bytes, or none
``?``      one byte
``[ab-d]`` one of these bytes; ``[^ab]``: one that is none of them
``\x``     this byte itself
=========  =========================================================

A pattern may come from a reader of a page. The matcher of some Redis servers, and a
regular expression, need a time that doubles with each ``*`` in it. Here the parts
between the stars have a fixed length each, and are looked for one after the other.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, AnyStr

if TYPE_CHECKING:
    from collections.abc import Callable


_TOKEN = re.compile(
    rb"\\(?P<literal>.)"
    rb"|(?P<set>\[(?:\\.|[^\]\\])*\]?)"
    rb"|(?P<star>\*+)"
    rb"|(?P<any>\?)"
    rb"|(?P<plain>.)",
    re.DOTALL,
)
_SPECIAL = re.compile(rb"([\\*?\[\]^-])")
_MEMBER = re.compile(rb"\\?(.)(?:-\\?(.))?", re.DOTALL)


def escaped(text: AnyStr) -> AnyStr:
    """Return the pattern that matches this text and nothing else."""
    if isinstance(text, bytes):
        return _SPECIAL.sub(rb"\\\1", text)
    return _SPECIAL.sub(rb"\\\1", text.encode()).decode()


@lru_cache(maxsize=64)
def matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Return a function that tells whether a name matches the whole pattern."""
    (first, _), *others = _parts(pattern)
    if not others:
        return lambda name: first.fullmatch(name) is not None
    *middle, (last, length) = others

    def matches(name: bytes) -> bool:
        found = first.match(name)
        for part, _ in middle:
            found = found and part.search(name, found.end())
        if not found:
            return False
        start = max(found.end(), len(name) - length)
        return last.fullmatch(name, start) is not None

    return matches


def head_of(pattern: bytes) -> bytes:
    """Return the bytes with which all names begin that match."""
    head = b""
    for token in _TOKEN.finditer(pattern):
        if token.lastgroup not in ("literal", "plain"):
            break
        head += token[token.lastgroup]
    return head


def _parts(pattern: bytes) -> list[tuple[re.Pattern[bytes], int]]:
    """Return the parts between stars, each with the length of what it matches."""
    parts: list[tuple[bytes, int]] = [(b"", 0)]
    for token in _TOKEN.finditer(pattern):
        if token["star"]:
            parts.append((b"", 0))
            continue
        kind = token.lastgroup or ""
        one = _one_of(token["set"]) if kind == "set" else re.escape(token[kind])
        text, length = parts[-1]
        parts[-1] = (text + (b"." if kind == "any" else one), length + 1)
    return [(re.compile(text, re.DOTALL), length) for text, length in parts]


def _one_of(group: bytes) -> bytes:
    """Return the regular expression for a group such as ``[^ab-d]``."""
    inside = group[1:].removesuffix(b"]")
    sign = b"^" if inside.startswith(b"^") else b""
    ranges = (
        sorted((found[1], found[2] or found[1]))
        for found in _MEMBER.finditer(inside.removeprefix(b"^"))
    )
    members = b"".join(
        re.escape(least) + b"-" + re.escape(most) for least, most in ranges
    )
    if members:
        return b"[" + sign + members + b"]"
    return b"." if sign else b"(?!)"
