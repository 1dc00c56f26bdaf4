"""What the key of a call looks like by default, and with ``unique_on``."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from tests.unit.fingerprint.support import UNDECIDABLE, f_any, key, rule_of


def test_default_key_shows_the_task_and_hides_the_arguments() -> None:
    """By default a key is the task's name and a 128-bit hash."""
    name, _, digest = key("secret").rpartition(":")

    assert name == "proj.f"
    assert len(bytes.fromhex(digest)) == 16


def test_default_key_never_changes() -> None:
    """Old and new workers of one deployment agree, so no release may change this."""
    call = ["x", {"day": date(2026, 1, 2), "sums": (Decimal("1.10"), 2.5, None)}]

    assert key(*call) == "proj.f:76c53b9c0a0a3e23a8b4055de6d8d738"


def test_no_arguments_make_one_call() -> None:
    """A task without arguments has one key; ``None`` is how Celery says none."""
    rule = rule_of(lambda: None)

    assert rule.key_of(None, None) == rule.key_of((), {})


def test_unique_on_leaves_the_other_arguments_out() -> None:
    """Only the named arguments make two calls the same; others may be anything."""
    rule = rule_of(unique_on=["a"])

    assert rule.key_of([1, UNDECIDABLE], {}) == rule.key_of([], {"a": 1, "b": 3})
    assert rule.key_of([1], {}) != rule.key_of([2], {})


def test_unique_on_nothing_makes_all_calls_the_same() -> None:
    """An empty list is one lock for the whole task."""
    rule = rule_of(unique_on=[])

    assert rule.key_of([1], {}) == rule.key_of([2], {})


def test_unique_on_finds_arguments_behind_a_catch_all() -> None:
    """A name that goes to ``**kwargs`` counts like any other, as does the whole."""
    by_name, whole = rule_of(f_any, unique_on=["x"]), rule_of(f_any, unique_on=["more"])

    assert by_name.key_of([1], {"x": 1}) == by_name.key_of([2], {"x": 1, "y": 2})
    assert whole.key_of([1], {"x": 1}) != whole.key_of([1], {"x": 1, "y": 2})
