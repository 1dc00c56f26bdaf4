"""Patterns of keys match as in Redis, in a time that their stars do not double."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.basics.glob import escaped, head_of, matcher


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        (b"a*b", b"a--b", True),
        (b"ab*ba", b"aba", False),
        (b"*a*b*", b"--a--b--", True),
        (b"*a*b*", b"--b--a--", False),
        (b"a?c", b"a\nc", True),
        (b"[a-c]x", b"bx", True),
        (b"[z-a]", b"m", True),
        (b"[^ab]", b"a", False),
        (b"[^ab]", b"c", True),
        (b"[]", b"]", False),
        (b"[\\]]", b"]", True),
        (b"[ab", b"b", True),
        (b"\\*", b"*", True),
        (b"\\*", b"a", False),
        (b"\xc3?", b"\xc3\xa4", True),
        (b"", b"", True),
        (b"", b"a", False),
    ],
)
def test_pattern_matches_as_in_redis(
    pattern: bytes, name: bytes, *, is_match: bool
) -> None:
    """Stars, single bytes, groups and escapes mean what they mean to SCAN."""
    assert matcher(pattern)(name) is is_match


letters = st.text("ab*?", max_size=8)


@given(letters, st.text("ab", max_size=10))
def test_stars_match_as_a_regular_expression(pattern: str, name: str) -> None:
    """The parts between the stars are found as by backtracking."""
    expression = pattern.replace("*", ".*").replace("?", ".")

    is_match = re.fullmatch(expression, name) is not None

    assert matcher(pattern.encode())(name.encode()) is is_match


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_any_bytes_are_a_pattern(pattern: bytes, name: bytes) -> None:
    """No pattern is an error, and each name that matches has the head."""
    if matcher(pattern)(name):
        assert name.startswith(head_of(pattern))


@given(st.text("ab*?[]^-\\ é☃", max_size=20))
def test_escaped_text_matches_itself_alone(text: str) -> None:
    """A key is found by its own text, also with the signs of a pattern in it."""
    pattern = escaped(text).encode()

    assert matcher(pattern)(text.encode())
    assert not matcher(pattern)(text.encode() + b"x")
    assert head_of(pattern) == text.encode()


def test_many_stars_are_matched_at_once() -> None:
    """A backtracking matcher would not come to an end with this pattern."""
    assert not matcher(b"*a" * 90 + b"*b")(b"a" * 8000)
