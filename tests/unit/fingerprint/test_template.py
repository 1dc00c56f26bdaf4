"""``key="invoice:{invoice_id}"``: a template is filled in with what a worker sees."""

from __future__ import annotations

import inspect
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given

from celery_redlock.errors import ConfigurationError, FingerprintError
from celery_redlock.fingerprint import KeyRule, KeyTemplate
from tests.unit.fingerprint.support import (
    ID,
    Invoice,
    Order,
    f,
    f_any,
    rule_of,
    sent,
    values,
)

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("template", "value", "text"),
    [
        ("invoice:{a}", 42, "invoice:42"),
        ("invoice:{a:05d}", 42, "invoice:00042"),
        ("invoice:{a}:{b}", "x", "invoice:x:2"),
        ("{{a}}:{a}", 1, "{a}:1"),
        ("nightly", 1, "nightly"),
        ("{a}", ID, str(ID)),
        ("{a}", Decimal("1.10"), "1.10"),
        ("{a:%Y-%m}", MOMENT, "2026-01"),
        ("{a}", MOMENT, str(MOMENT)),
        ("{a}", time(1, 2), "01:02:00"),
        ("{a}", b"bytes", "bytes"),
        ("{a}", None, "None"),
        ("{a}", (1, "x"), '[1,"x"]'),
        ("{a}", {"y": 1, "x": 2}, '{"x":2,"y":1}'),
        ("{a}", {2, 1}, "[1,2]"),
        ("{a[id]}", {"id": 7}, "7"),
        ("{a.id}", {"id": 7}, "7"),
        ("{a.number}", Order(7, date(2026, 1, 2)), "7"),
        ("{a[day]:%d}", Order(7, date(2026, 1, 2)), "02"),
        ("{a.number}", Invoice(number=7, day=date(2026, 1, 2)), "7"),
        ("{a[0].x[1]}", [{"x": [1, 2]}], "2"),
        ("{a.x.y}", {"x": {"y": 1}}, "1"),
        ("{a[1]}", {1: "x"}, "x"),
        ("{a!r}", "x", "'x'"),
        ("{a:>{b}}", "x", " x"),
        ("Straße:{a}", "Ü", "Straße:Ü"),
    ],
)
def test_template_is_the_text_of_the_key(template: str, value: Any, text: str) -> None:
    """A template is filled like ``str.format`` fills it, from wire values."""
    assert rule_of(key=template).key_of([value], {}) == text


@given(values)
def test_template_survives_the_broker(value: Any) -> None:
    """The producer and the worker fill a template with the same text."""
    rule = rule_of(key="x{a}x{b!r}")
    args, kwargs = sent([(value,), {"b": [value]}])

    def text(args: Any, kwargs: Any) -> str | None:
        try:
            return rule.key_of(args, kwargs)
        except FingerprintError as error:
            return str(error)

    assert text(args, kwargs) == text((value,), {"b": [value]})


def test_template_shares_its_lock_with_whoever_makes_the_same_text() -> None:
    """The text alone decides: neither the task nor the type of an argument does."""
    signature = inspect.signature(f)
    one = KeyRule("proj.f", signature, key="invoice:{a}")
    other = KeyRule("proj.g", signature, key="{b}:{a}")

    assert one.key_of([1], {}) == other.key_of(["1"], {"b": "invoice"})


def test_template_finds_arguments_behind_a_catch_all() -> None:
    """Arguments that go to ``**kwargs`` and ``*args`` can be named."""
    rule = rule_of(f_any, key="{user}:{more[user]}:{rest[0]}")

    assert rule.key_of([1, "r"], {"user": 7}) == "7:7:r"


@pytest.mark.parametrize("step", ["__class__", "real", "[__class__]", "__init__.x"])
def test_template_never_looks_at_attributes(step: str) -> None:
    """A step looks into dicts and lists only, whatever the value can do."""
    separator = "" if step.startswith("[") else "."
    rule = rule_of(key=f"{{a{separator}{step}}}")

    refused: list[Any] = [1, {}, [], "text", b"bytes", ID, MOMENT, None]
    for value in refused:
        with pytest.raises(FingerprintError, match="cannot be filled in"):
            rule.key_of([value], {})


def test_long_key_is_cut_and_stays_unique() -> None:
    """A text above 512 characters keeps its beginning and ends in a hash."""
    rule = rule_of(key="{a}")
    one, other = ("x" * 600 + end for end in "ab")

    assert rule.key_of(["x" * 512], {}) == "x" * 512
    assert len(rule.key_of([one], {})) == 512
    assert rule.key_of([one], {}).startswith("x" * 400)
    assert rule.key_of([one], {}) != rule.key_of([other], {})


@pytest.mark.parametrize(
    ("value", "fault"),
    [("", "empty"), (" ", "empty"), ("a\nb", "control"), ("\0", "control")],
)
def test_key_must_be_printable_text(value: str, fault: str) -> None:
    """A text that would spoil logs or values is refused, by the name of the task."""
    with pytest.raises(FingerprintError, match=rf"proj\.f .*{fault}"):
        rule_of(key="{a}").key_of([value], {})


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("", "empty"),
        ("a\nb", "control character"),
        ("{a", "expected '}'"),
        ("a}", "Single '}'"),
        ("{}", "does not name an argument"),
        ("{0}", "does not name an argument"),
        ("{a[}", "expected '}'"),
        ("{a b}", "does not name an argument"),
        ("{a!x}", "no conversion 'x'"),
        ("{a:{}}", "does not name an argument"),
    ],
)
def test_template_is_checked_when_it_is_made(template: str, fault: str) -> None:
    """What is no template is refused at once, and the error shows one."""
    with pytest.raises(ConfigurationError, match=fault) as caught:
        KeyTemplate(template)
    assert "invoice:{invoice_id}" in str(caught.value)
