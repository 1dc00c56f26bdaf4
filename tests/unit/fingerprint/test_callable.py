"""``key=function``: what it is given, and what it must return."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from celery_redlock.errors import FingerprintError
from tests.unit.fingerprint.support import ID, Order, f_any, rule_of, sent


def test_callable_gets_the_arguments_that_it_names() -> None:
    """A key function is called with the bound arguments, defaults included."""
    assert rule_of(key=lambda a: f"a:{a}").key_of([1], {}) == "a:1"
    assert rule_of(key=lambda a, b: f"{a}:{b}").key_of([], {"a": 1}) == "1:2"
    assert rule_of(key=lambda **all_: str(all_)).key_of([1], {}) == "{'a': 1, 'b': 2}"
    assert rule_of(key="{a}:{b}".format).key_of([1], {}) == "1:2"


def test_callable_gets_what_is_behind_a_catch_all() -> None:
    """What goes to ``**kwargs`` can be named, or left out if it has a default."""
    rule = rule_of(f_any, key=lambda user, region="eu": f"{user}:{region}")

    assert rule.key_of([1], {"user": 7}) == "7:eu"
    assert rule.key_of([1], {"user": 7, "region": "us"}) == "7:us"
    with pytest.raises(FingerprintError, match="no argument 'user'"):
        rule.key_of([1], {})


def test_callable_gets_what_a_worker_sees() -> None:
    """On both sides of the broker a key function is given the same values."""
    seen: list[Any] = []

    def remember(a: Any) -> str:
        seen.append(a)
        return "x"

    value = ((1, 2), {1: ID})
    rule_of(key=remember).key_of([value], {})
    rule_of(key=remember).key_of(sent([value]), {})

    assert seen == [[[1, 2], {"1": ID}]] * 2


def test_callable_gets_what_json_cannot_carry_as_it_is() -> None:
    """What only a pickled message can hold arrives as itself, and so it is given."""
    order = Order(7, date(2026, 1, 2))

    assert rule_of(key=lambda a: f"{a.number}").key_of([order], {}) == "7"


@pytest.mark.parametrize("answer", [None, 7, b"x", ["x"]])
def test_callable_must_return_text(answer: Any) -> None:
    """Anything but ``str`` is refused, by its type."""
    with pytest.raises(FingerprintError, match=f"is {type(answer).__name__} and not"):
        rule_of(key=lambda: answer).key_of([1], {})


def test_error_of_a_callable_is_its_own() -> None:
    """What a key function raises is not hidden behind an error of ours."""
    with pytest.raises(ZeroDivisionError):
        rule_of(key=lambda a: str(1 / a)).key_of([0], {})
