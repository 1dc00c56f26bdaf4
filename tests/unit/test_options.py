"""What a task may ask for, and how it is told what is wrong."""

from __future__ import annotations

import inspect
import math
from datetime import timedelta
from typing import Any

import pytest

from celery_redlock.errors import ConfigurationError
from celery_redlock.options import LockOptions
from celery_redlock.policies import Abort, Raise, Retry, Run, Skip, Wait
from tests.unit.support import CONFLICT, LOSS, OUTAGE, delay, settings


def refusal(**options: Any) -> str:
    """Return what a task is told that has these options."""
    with pytest.raises(ConfigurationError) as caught:
        LockOptions.of(options)
    return str(caught.value)


# -- options that are right --------------------------------------------------------


def test_options_have_defaults() -> None:
    """A task that asks for nothing skips duplicates and is stopped on loss."""
    resolved = LockOptions().resolve(settings(ttl=20))

    assert resolved.on_conflict(CONFLICT) == Skip()
    assert resolved.on_lock_lost(LOSS) == Abort()
    assert isinstance(resolved.on_backend_error(OUTAGE), Retry)
    assert (resolved.ttl, resolved.renew, resolved.hold_at_least) == (20.0, True, 0.0)


def test_options_go_before_settings() -> None:
    """What a task says counts more than what its app says."""
    options = LockOptions(ttl=timedelta(seconds=10), on_backend_error="run")
    resolved = options.resolve(settings(ttl=20, on_backend_error="raise"))

    assert resolved.ttl == 10.0
    assert resolved.on_backend_error(OUTAGE) == Run()
    unsaid = LockOptions().resolve(settings(on_backend_error="raise"))
    assert unsaid.on_backend_error(OUTAGE) == Raise()


def test_wait_gets_its_timeout() -> None:
    """``wait_timeout`` is for whoever says "wait" without a number; 10 s."""
    said = LockOptions(on_conflict="wait", wait_timeout=5)
    unsaid = LockOptions(on_conflict=lambda _: Wait())

    assert said.resolve(settings()).on_conflict(CONFLICT) == Wait(5.0)
    assert unsaid.resolve(settings()).on_conflict(CONFLICT) == Wait(10.0)
    own = LockOptions(on_conflict=lambda _: Wait(60), wait_timeout=5)
    assert own.resolve(settings()).on_conflict(CONFLICT) == Wait(60.0)


def test_retry_gets_its_countdown() -> None:
    """``retry_countdown`` is for whoever says "retry" without a number."""
    options = LockOptions(
        on_conflict="retry", on_lock_lost="retry", retry_countdown=timedelta(minutes=1)
    )
    resolved = options.resolve(settings())

    assert resolved.on_conflict(CONFLICT) == Retry(60.0)
    assert resolved.on_lock_lost(LOSS) == Retry(60.0)
    own = LockOptions(on_conflict=Retry(5)).resolve(settings())
    assert own.on_conflict(CONFLICT) == Retry(5.0)


def test_retry_countdown_is_half_the_ttl_at_random() -> None:
    """By default duplicates come back after a quarter to three quarters of the ttl."""
    resolved = LockOptions(on_conflict="retry", ttl=20).resolve(settings())

    delays = {delay(resolved.on_conflict(CONFLICT)) for _ in range(100)}

    assert len(delays) > 90
    assert all(5 <= seconds <= 15 for seconds in delays)


def test_retry_countdown_leaves_an_outage_alone() -> None:
    """Outages have a schedule of their own."""
    options = LockOptions(on_conflict="retry", retry_countdown=1000)

    decision = options.resolve(settings()).on_backend_error(OUTAGE)

    assert delay(decision) <= 15


@pytest.mark.parametrize(
    "options",
    [
        {"wait_timeout": 5, "on_conflict": "wait"},
        {"wait_timeout": 5, "on_conflict": Wait()},
        {"wait_timeout": 5, "on_conflict": {"execute": "wait"}},
        {"wait_timeout": 5, "on_conflict": lambda _: "wait"},
        {"retry_countdown": 5, "on_conflict": "retry"},
        {"retry_countdown": 5, "on_conflict": lambda _: "retry"},
        {"retry_countdown": 5, "on_lock_lost": "retry"},
        {"retry_countdown": 5, "on_lock_lost": lambda _: "retry"},
    ],
)
def test_option_with_a_possible_effect_is_accepted(options: dict[str, Any]) -> None:
    """What a policy may use may be given."""
    LockOptions.of(options).resolve(settings())


def test_options_make_the_key_rule() -> None:
    """The options say how calls are reduced to keys, checked against the task."""
    signature = inspect.signature(lambda a, b=2: (a, b))

    template = LockOptions(key="{a}").key_rule("t", signature)
    subset = LockOptions(unique_on=["b"]).key_rule("t", signature)

    assert template.key_of([7], {}) == "7"
    assert subset.key_of([7], {}) == subset.key_of([8], {})
    with pytest.raises(ConfigurationError, match="'c'"):
        LockOptions(key="{c}").key_rule("t", signature)


# -- options that are wrong --------------------------------------------------------


@pytest.mark.parametrize("wrong", ["on_conflit", "tll", "unique"])
def test_unknown_option_is_refused(wrong: str) -> None:
    """An option that does not exist is refused with the nearest one."""
    said = refusal(**{wrong: 1})

    assert said.startswith(f"There is no lock option '{wrong}'. Did you mean '")


@pytest.mark.parametrize("name", ["ttl", "wait_timeout", "retry_countdown"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, "30"])
def test_option_that_is_no_duration_is_refused(name: str, value: Any) -> None:
    """A duration is a finite number of seconds above 0."""
    said = refusal(**{name: value, "on_conflict": lambda _: "skip"})

    assert said == f"{name} is {value!r}; it must be a number of seconds above 0."


@pytest.mark.parametrize("value", [-1, math.nan, True, "30"])
def test_hold_at_least_may_be_zero_and_nothing_less(value: Any) -> None:
    """Not holding is the default; everything else is a duration."""
    assert LockOptions(hold_at_least=0).hold_at_least == 0.0
    assert LockOptions.of({"hold_at_least": timedelta(0)}).hold_at_least == 0.0
    assert refusal(hold_at_least=value).startswith("hold_at_least is")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"renew": 1}, "renew is 1; it must be True or False."),
        ({"key": 5}, "key is 5; it must be a template"),
        ({"key": "{a"}, "The key '{a' cannot be used"),
        ({"unique_on": "user_id"}, 'list of argument names such as ["user_id"]'),
        ({"unique_on": [1]}, "list of argument names"),
        ({"unique_on": iter(["a"])}, "list of argument names"),
        ({"key": "x", "unique_on": []}, "key and unique_on both say"),
        ({"on_conflict": "skp"}, "Did you mean 'skip'?"),
        ({"on_lock_lost": "skip"}, "on_lock_lost='skip' does not exist"),
        ({"on_backend_error": "wait"}, "on_backend_error='wait' does not exist"),
        ({"on_conflict": None}, "on_conflict=None is no policy"),
    ],
)
def test_option_that_is_wrong_is_refused(options: dict[str, Any], fault: str) -> None:
    """Each mistake is told at decoration, by the option's name."""
    assert fault in refusal(**options)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"wait_timeout": 5}, "on_conflict='wait'"),
        ({"wait_timeout": 5, "on_conflict": "retry"}, "on_conflict='wait'"),
        ({"wait_timeout": 5, "on_conflict": Skip()}, "on_conflict='wait'"),
        ({"retry_countdown": 5}, "on_conflict='retry'"),
        ({"retry_countdown": 5, "on_conflict": "wait"}, "on_conflict='retry'"),
        ({"retry_countdown": 5, "on_conflict": {"execute": "skip"}}, "='retry'"),
    ],
)
def test_option_without_effect_is_refused(options: dict[str, Any], remedy: str) -> None:
    """An option that nothing would read is a misunderstanding."""
    said = refusal(**options)

    assert "has no effect with on_conflict=" in said
    assert remedy in said


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"ttl": 61}, "proj.f: The ttl of 61 s is above max_ttl (60 s)"),
        ({"ttl": 0.1}, "proj.f: The ttl of 0.1 s must be more than three"),
        ({"hold_at_least": 61}, "proj.f: hold_at_least is 61 s, above redlock_max_ttl"),
    ],
)
def test_option_that_does_not_go_with_the_settings_is_refused(
    options: dict[str, Any], fault: str
) -> None:
    """What only the settings can tell is told by the name of the task."""
    with pytest.raises(ConfigurationError) as caught:
        LockOptions.of(options).resolve(settings(), "proj.f")

    assert str(caught.value).startswith(fault)


# -- which of the decorator's arguments they are -----------------------------------


def test_decorator_arguments_are_parted() -> None:
    """Lock options go one way and everything that Celery takes the other."""
    given = {"key": "x", "name": "n", "bind": True, "retry_backoff": 2, "queue": "q"}

    ours, rest = LockOptions.split(given)

    assert ours == {"key": "x"}
    assert rest == {"name": "n", "bind": True, "retry_backoff": 2, "queue": "q"}


def test_misspelt_decorator_argument_is_ours() -> None:
    """Celery would take a typing error as an attribute and never say a word."""
    ours, rest = LockOptions.split({"on_conflit": "skip", "keys": 1}, foreign=["keys"])
    assert LockOptions.split({"ttl": 5}, foreign=["ttl"]) == ({"ttl": 5}, {})

    assert (ours, rest) == ({"on_conflit": "skip"}, {"keys": 1})
    assert "Did you mean 'on_conflict'?" in refusal(**ours)
