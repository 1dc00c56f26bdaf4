"""Which calls are the same call, and which are two: as a broker tells them apart."""

from __future__ import annotations

import enum
import inspect
import math
import subprocess
import sys
from collections import OrderedDict
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from celery_redlock.fingerprint import KeyRule
from tests.unit.fingerprint.support import (
    Invoice,
    Order,
    f,
    key,
    key_any,
    scalars,
    sent,
    values,
)

# -- equal calls are equal ---------------------------------------------------------


@given(values, values)
def test_key_survives_the_broker(a: Any, b: Any) -> None:
    """The producer's Python objects and the worker's decoded ones make one key."""
    args, kwargs = sent([(a,), {"b": b}])

    assert key(*args, **kwargs) == key(a, b=b)


@given(st.lists(values, max_size=3), st.dictionaries(st.text(), values, max_size=3))
def test_key_of_any_arguments_survives_the_broker(
    rest: list[Any], more: dict[str, Any]
) -> None:
    """What goes to ``*args`` and ``**kwargs`` counts, and survives as well."""
    more = {f"_{name}": value for name, value in more.items()}
    args, kwargs = sent([(1, *rest), more])

    assert key_any(*args, **kwargs) == key_any(1, *rest, **more)


@given(values, values)
def test_how_an_argument_is_passed_does_not_matter(a: Any, b: Any) -> None:
    """By position or by name, in any order of names, it is the same call."""
    assert key(a, b) == key(a, b=b) == key(a=a, b=b) == key(b=b, a=a)


@given(values)
def test_default_that_is_passed_does_not_matter(a: Any) -> None:
    """Leaving an argument out and passing its default are the same call."""
    assert key(a) == key(a, 2) == key(a, b=2)


@given(st.dictionaries(st.text(), values, min_size=1))
def test_order_of_a_dict_does_not_matter(value: dict[str, Any]) -> None:
    """A dict is what it holds, in whatever order it came to hold it."""
    assert key(value) == key(OrderedDict(reversed(value.items())))


@given(st.sets(scalars.filter(lambda v: v == v)))  # noqa: PLR0124  (NaN is not)
def test_order_of_a_set_does_not_matter(value: set[Any]) -> None:
    """A set is its members, whatever order the process happens to keep them in."""
    assert key(value) == key(frozenset(reversed(list(value))))


def test_order_of_a_set_does_not_matter_between_processes() -> None:
    """Hashes of text differ from process to process; keys do not."""
    program = (
        "import inspect\n"
        "from celery_redlock.fingerprint import KeyRule\n"
        "rule = KeyRule('t', inspect.signature(lambda a: None))\n"
        "print(rule.key_of([{'one', 'two', 'three', 'four', 'five'}], None))\n"
    )

    keys = {
        subprocess.run(  # noqa: S603  (our own program)
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(keys) == 1


class Point(NamedTuple):
    """A tuple with names."""

    x: int
    y: int


class Colour(enum.Enum):
    """Something with a few values."""

    RED = "red"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2), [1, 2]),
        (Point(1, 2), [1, 2]),
        ({1: "x"}, {"1": "x"}),
        ({True: 1, None: 2}, {"true": 1, "null": 2}),
        ({10: "x", 9: "y"}, {"9": "y", "10": "x"}),
        (math.nan, float("-nan")),
        ({2, 1}, [1, 2]),
        (Order(1, date(2026, 1, 2)), {"number": 1, "day": date(2026, 1, 2)}),
        (Invoice(number=1, day=date(2026, 1, 2)), {"number": 1, "day": "2026-01-02"}),
        (
            [Invoice(number=1, day=date(2026, 1, 2))],
            [{"number": 1, "day": "2026-01-02"}],
        ),
        (Colour.RED, "red"),
    ],
)
def test_same_on_the_wire_is_the_same_call(one: Any, other: Any) -> None:
    """What a broker would carry as the same text makes the same call."""
    assert key(one) == key(other)


def test_body_may_change_its_arguments() -> None:
    """A key is computed from what the arguments are now, and then it stands."""
    numbers = [1]
    before = key(numbers)
    numbers.append(2)

    assert key([1]) == before != key(numbers)


# -- different calls are different -------------------------------------------------


def same(one: Any, other: Any) -> bool:
    """Tell whether two JSON values are the same, types included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[n], other[n]) for n in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


def plain(value: Any) -> Any:
    """Return the JSON value that kombu sends, markers of types and all."""
    return kombu_json.loads(kombu_json.dumps(value), object_hook=None)  # type: ignore[no-untyped-call]


@given(values, values)
def test_calls_differ_exactly_when_the_wire_does(one: Any, other: Any) -> None:
    """Two calls share a key if and only if a broker cannot tell them apart."""
    assert (key(one) == key(other)) == same(plain(one), plain(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), ("1",)),
        ((1,), (1.0,)),
        ((1,), (True,)),
        ((0.0,), (-0.0,)),
        ((None,), ("None",)),
        ((b"a",), ("a",)),
        ((Decimal("1.0"),), (Decimal("1.00"),)),
        ((date(2026, 1, 2),), (datetime(2026, 1, 2),)),  # noqa: DTZ001  (naive)
        ((date(2026, 1, 2),), ("2026-01-02",)),
        (([1, 2],), ([2, 1],)),
        (([[1], 2],), ([1, [2]],)),
        (("1_b-2",), ("1", 2)),
        ((1, 2), (2, 1)),
        ((1, None), (1, 2)),
    ],
)
def test_different_on_the_wire_is_a_different_call(one: Any, other: Any) -> None:
    """Nothing that a worker could tell apart shares a key."""
    assert key(*one) != key(*other)


def test_arguments_do_not_run_into_each_other() -> None:
    """Named and catch-all arguments cannot imitate each other."""
    keys = {
        key_any(1),
        key_any(1, 2),
        key_any(1, [2]),
        key_any(1, b=[2]),
        key_any(1, rest=[2]),
        key_any(1, more={"x": 2}),
        key_any(1, x=2),
        key_any({"a": 1}),
    }

    assert len(keys) == 8


def test_another_task_is_another_call() -> None:
    """The same arguments of two tasks are two calls."""
    signature = inspect.signature(f)
    one, other = KeyRule("proj.f", signature), KeyRule("proj.g", signature)

    assert one.key_of([1], {}) != other.key_of([1], {})
