"""What is decided when a call cannot have its lock, or loses it."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.errors import ConfigurationError
from celery_redlock.policies import (
    ON_BACKEND_ERROR,
    ON_CONFLICT,
    ON_LOCK_LOST,
    Abort,
    BufferOne,
    CancelRunning,
    Conflict,
    Outage,
    PolicyOption,
    Raise,
    Retry,
    Run,
    Skip,
    Wait,
    Warn,
    policy_from,
)
from tests.unit.support import CONFLICT, LOSS, OUTAGE, delay

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_OPTION: list[PolicyOption[Any, Any]] = [
    ON_CONFLICT,
    ON_LOCK_LOST,
    ON_BACKEND_ERROR,
]
any_option = pytest.mark.parametrize("option", EVERY_OPTION, ids=lambda o: o.name)


# -- words -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "decision"),
    [
        ("skip", Skip()),
        ("raise", Raise()),
        ("retry", Retry()),
        ("wait", Wait()),
        ("allow", Run()),
        ("buffer_one", BufferOne()),
        ("cancel_running", CancelRunning()),
    ],
)
def test_conflict_is_answered_by_a_word(word: str, decision: object) -> None:
    """Each word for a conflict has one meaning."""
    assert policy_from(word)(CONFLICT) == decision


@pytest.mark.parametrize(
    ("word", "decision"), [("abort", Abort()), ("retry", Retry()), ("warn", Warn())]
)
def test_loss_is_answered_by_a_word(word: str, decision: object) -> None:
    """Each word for a lost lock has one meaning."""
    assert ON_LOCK_LOST.policy(word)(LOSS) == decision


@pytest.mark.parametrize(
    ("word", "decision"), [("raise", Raise()), ("run", Run()), ("skip", Skip())]
)
def test_outage_is_answered_by_a_word(word: str, decision: object) -> None:
    """Each word for an outage has one meaning; "retry" has a schedule, too."""
    assert ON_BACKEND_ERROR.policy(word)(OUTAGE) == decision
    assert isinstance(ON_BACKEND_ERROR.policy("retry")(OUTAGE), Retry)


def test_wait_waits_once() -> None:
    """A call that has waited in vain fails; it does not wait again, or vanish."""
    waited = Conflict(key="k", task="proj.f", waited=10.0)

    assert policy_from("wait")(waited) == Raise()


@given(st.integers(0, 10_000))
def test_outage_is_sat_out_longer_each_time(deferrals: int) -> None:
    """The delay is random, up to 15 s doubled with each deferral, at most 300 s."""
    outage = Outage(key="k", task="proj.f", deferrals=deferrals)

    decision = ON_BACKEND_ERROR.policy("retry")(outage)

    assert 0 < delay(decision) <= min(300.0, 15.0 * 2 ** min(deferrals, 10))


def test_outage_is_sat_out_at_random() -> None:
    """Calls that fail together do not come back together."""
    retry = ON_BACKEND_ERROR.policy("retry")

    assert len({retry(OUTAGE) for _ in range(100)}) > 90


def test_named_quarantine_is_waited_out() -> None:
    """Nodes that say when they vote again are not asked before, nor much later."""
    outage = Outage(key="k", task="proj.f", retry_after=62.2, deferrals=9)

    decision = ON_BACKEND_ERROR.policy("retry")(outage)

    assert 62.2 <= delay(decision) <= 62.2 * 1.2


# -- decisions ---------------------------------------------------------------------


@pytest.mark.parametrize("decision", [Skip(), Raise(), Run(), Retry(5), Wait(5)])
def test_decision_is_a_policy(decision: Any) -> None:
    """A decision, with its own numbers, answers everything with itself."""
    assert policy_from(decision)(CONFLICT) == decision


@pytest.mark.parametrize("value", [5, 5.0, timedelta(seconds=5)])
def test_duration_of_a_decision_is_in_seconds(value: Any) -> None:
    """Durations may be given as a timedelta and are read as float seconds."""
    for duration in (Retry(value).countdown, Wait(value).timeout):
        assert isinstance(duration, float)
        assert duration == 5.0


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "5", True])
def test_duration_of_a_decision_is_checked(value: Any) -> None:
    """A duration that makes no sense is refused where it is written."""
    with pytest.raises(ConfigurationError, match=r"countdown is .* above 0"):
        Retry(value)
    with pytest.raises(ConfigurationError, match=r"timeout is .* above 0"):
        Wait(value)


# -- callables ---------------------------------------------------------------------


class Urgent:
    """A policy with a memory."""

    def __init__(self) -> None:
        self.seen: list[Conflict] = []

    def __call__(self, conflict: Conflict) -> str:
        """Answer with a word."""
        self.seen.append(conflict)
        return "allow"

    def ask(self) -> str:
        """Answer without having been told anything."""
        return "skip" if self.seen else "raise"

    def skip(self, conflict: Conflict) -> Skip:
        """Answer with a decision."""
        self.seen.append(conflict)
        return Skip()


def by_retries(limit: int, conflict: Conflict) -> Raise | Retry:
    """Put the call back until it has been put back so often."""
    return Raise() if conflict.deferrals >= limit else Retry(countdown=1)


@pytest.mark.parametrize(
    ("policy", "decision"),
    [
        (lambda _: "raise", Raise()),
        (lambda _: Wait(timeout=60), Wait(60)),
        (Urgent(), Run()),
        (Urgent().skip, Skip()),
        (functools.partial(by_retries, 0), Raise()),
        (functools.partial(by_retries, 1), Retry(1)),
        (lambda _, default="skip": default, Skip()),
        (lambda *situation: "skip" if situation else "raise", Skip()),
    ],
)
def test_callable_answers_with_a_decision_or_a_word(
    policy: Any, decision: object
) -> None:
    """Whatever can be called with the situation is a policy."""
    assert policy_from(policy)(CONFLICT) == decision


def test_callable_is_told_the_situation() -> None:
    """What it is given is the very conflict that the task met."""
    urgent = Urgent()

    policy_from(urgent)(CONFLICT)

    assert urgent.seen == [CONFLICT]


def test_word_that_a_callable_answers_is_asked_itself() -> None:
    """Always answering "wait" waits once; always answering ``Wait()`` goes on."""
    waited = Conflict(key="k", task="proj.f", waited=10.0)

    assert policy_from(lambda _: "wait")(waited) == Raise()
    assert policy_from(lambda _: Wait())(waited) == Wait()


def test_callable_is_a_policy_for_every_option() -> None:
    """Loss and outage are decided by callables as well."""
    by_fence = ON_LOCK_LOST.policy(lambda loss: "warn" if loss.fence else "abort")

    assert by_fence(LOSS) == Warn()
    assert ON_BACKEND_ERROR.policy(lambda _: Run())(OUTAGE) == Run()


@pytest.mark.parametrize(
    "answer", [None, "", "skp", "buffer_all", True, 5, Skip, Abort(), ["skip"]]
)
def test_callable_that_answers_nonsense_is_refused(answer: Any) -> None:
    """What is no answer to a conflict is refused, with all that is one."""
    policy = policy_from(lambda _: answer)

    with pytest.raises(ConfigurationError, match="on_conflict answered") as caught:
        policy(CONFLICT)
    for choice in ("'skip'", "'raise'", "'retry'", "'wait'", "'allow'", "Retry()"):
        assert choice in str(caught.value)


def test_long_nonsense_is_cut() -> None:
    """An answer that is a document does not fill the log."""
    with pytest.raises(ConfigurationError) as caught:
        policy_from(lambda _: "x" * 1000)(CONFLICT)

    assert len(str(caught.value)) < 300


def test_error_of_a_callable_is_its_own() -> None:
    """What a policy raises is not hidden behind an error of ours."""
    with pytest.raises(ZeroDivisionError):
        policy_from(lambda _: 1 / 0)(CONFLICT)


@pytest.mark.parametrize("policy", [Skip, Retry, Urgent, by_retries, Urgent().ask])
def test_callable_must_take_the_situation(policy: Callable[..., object]) -> None:
    """A callable that cannot be called so, or a class, is refused at decoration."""
    with pytest.raises(ConfigurationError, match="callable that takes the situation"):
        policy_from(policy)


# -- values that are no policy -----------------------------------------------------


@any_option
@pytest.mark.parametrize("value", [None, 5, True, [], {}, ["skip"], object(), b"skip"])
def test_value_that_is_no_policy_is_refused(
    option: PolicyOption[Any, Any], value: Any
) -> None:
    """Anything else is refused by the option's name, with what there is."""
    with pytest.raises(ConfigurationError, match=f"^{option.name}=.* is no policy"):
        option.policy(value)


@pytest.mark.parametrize(
    ("option", "word", "near"),
    [
        (ON_CONFLICT, "skipp", "skip"),
        (ON_CONFLICT, "Raise", "raise"),
        (ON_LOCK_LOST, "abrot", "abort"),
        (ON_BACKEND_ERROR, "rerty", "retry"),
    ],
)
def test_unknown_word_gets_the_nearest(
    option: PolicyOption[Any, Any], word: str, near: str
) -> None:
    """A typing error is answered with the word that was meant."""
    with pytest.raises(ConfigurationError, match=f"Did you mean '{near}'"):
        option.policy(word)


@pytest.mark.parametrize("word", ["return_existing", "terminate", ""])
def test_word_that_does_not_exist_is_refused(word: str) -> None:
    """Where nothing is near, all words are named."""
    with pytest.raises(ConfigurationError, match="There is 'allow', 'buffer_one'"):
        policy_from(word)


@any_option
def test_word_of_another_option_is_refused(option: PolicyOption[Any, Any]) -> None:
    """Each option has its own words."""
    foreign = {word for other in EVERY_OPTION for word in other.words} - set(
        option.words
    )

    for word in foreign:
        with pytest.raises(ConfigurationError, match=f"{option.name}='{word}'"):
            option.policy(word)


# -- situations --------------------------------------------------------------------


def test_situation_hides_the_arguments() -> None:
    """Arguments may be private: a conflict in a log does not show them."""
    conflict = Conflict(key="k", task="t", args=("secret",), kwargs={"a": "secret"})

    assert "secret" not in repr(conflict)
    assert conflict.kwargs["a"] == "secret"
