"""Declarations that cannot give a key are refused, and calls that have none."""

from __future__ import annotations

from typing import Any

import pytest
from kombu.utils import json as kombu_json

from celery_redlock.errors import ConfigurationError, FingerprintError
from tests.unit.fingerprint.support import UNDECIDABLE, Order, f_any, key, rule_of

# -- mistakes in the declaration ---------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"key": "invoice:{userid}"},
        {"key": "{a:{userid}}"},
        {"key": lambda userid: f"{userid}"},
        {"unique_on": ["a", "userid"]},
    ],
    ids=["template", "nested", "callable", "unique_on"],
)
def test_unknown_argument_is_refused_at_decoration(options: dict[str, Any]) -> None:
    """Naming an argument that the task does not have shows which one was meant."""

    def task(a: int, user_id: int = 2) -> None:
        """Take two arguments."""

    fault = r"'userid', which proj\.f\(a, user_id=2\) does not .* mean 'user_id'"
    with pytest.raises(ConfigurationError, match=fault):
        rule_of(task, **options)


def test_unknown_argument_may_be_behind_a_catch_all() -> None:
    """With ``**kwargs`` any name may be passed, and must be, if the key needs it."""
    rule = rule_of(f_any, unique_on=["user"])

    assert rule.key_of([1], {"user": 7}) != rule.key_of([1], {"user": 8})
    with pytest.raises(FingerprintError, match="no argument 'user'"):
        rule.key_of([1], {})


def test_default_that_cannot_be_part_of_a_key_is_refused_at_decoration() -> None:
    """A default that would make every call fail is found before the first call."""

    def task(a: int, marker: Any = UNDECIDABLE) -> None:
        """Take something that no broker can carry, by default."""

    with pytest.raises(ConfigurationError, match=r"'marker'.*JSON has no form for obj"):
        rule_of(task)
    assert rule_of(task, unique_on=["a"]).key_of([1], {})
    assert rule_of(task, key="{a}").key_of([1], {})


class Lazy:
    """A translation that must not be looked up yet, as Django's are."""

    def __str__(self) -> str:
        raise AssertionError

    def __json__(self) -> str:
        raise AssertionError


def test_lazy_default_is_left_alone_at_decoration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lazy translation as a default is not evaluated before there is a call."""
    monkeypatch.setattr(kombu_json, "textual_types", (Lazy,))

    def task(subject: Any = Lazy()) -> None:  # noqa: B008  (how Django users do it)
        """Take a translated text."""

    assert rule_of(task).key_of(["x"], {})


# -- calls that have no key --------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "fault"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"c": 3}, "unexpected keyword argument 'c'"),
        ((1,), {"a": 1}, "multiple values for argument 'a'"),
    ],
)
def test_call_that_cannot_be_bound_has_no_key(
    args: Any, kwargs: Any, fault: str
) -> None:
    """A call that the task would refuse is refused with the task's signature."""
    with pytest.raises(FingerprintError, match=fault) as caught:
        key(*args, **kwargs)
    assert "proj.f(a, b=2) cannot be called" in str(caught.value)


def circle() -> list[Any]:
    """Return a list that holds itself."""
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (object(), r"\(object\).*JSON has no form for object"),
        ([{"x": object()}], r"\(list\).*JSON has no form for object"),
        ({(1, 2): 3}, r"\(dict\).*keys must be str"),
        (circle(), r"\(list\).*Circular"),
        (Order, r"\(type\).*JSON has no form for type"),
        (bytearray(b"x"), r".*JSON has no form for bytearray"),
        (1j, r".*JSON has no form for complex"),
    ],
)
def test_argument_that_cannot_be_reduced_is_named(value: Any, fault: str) -> None:
    """The error names the argument, its type and what to do."""
    with pytest.raises(FingerprintError, match=f"Argument 'b' of proj.f {fault}") as e:
        key(1, value)
    assert "unique_on" in str(e.value)
    assert "key=" in str(e.value)


def test_marker_that_no_worker_can_decode_is_named() -> None:
    """A dict that looks like a type of kombu's fails here as it would on arrival."""
    value = {"__type__": "unknown", "__value__": 1}

    with pytest.raises(FingerprintError, match="Argument 'a'"):
        rule_of(key="{a}").key_of([value], {})
