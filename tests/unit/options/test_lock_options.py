"""The lock options of a task: their defaults, and which of them go together."""

from __future__ import annotations

import inspect
import math
from datetime import timedelta
from typing import Any

import pytest

from celery_redlock.errors import ConfigurationError
from celery_redlock.line.backlog import Place
from celery_redlock.options.arguments import TaskArguments
from celery_redlock.options.call_key import KeyRule
from celery_redlock.options.lock_options import LockOptions
from celery_redlock.policies import (
    Abort,
    BufferOne,
    CancelRunning,
    Conflict,
    PublishDecision,
    Raise,
    Retry,
    Run,
    Skip,
    Wait,
)
from tests.unit.support import CONFLICT, LOSS, OUTAGE, delay, settings

QUEUED: Any = {"unique_while": "queued"}
CLAIMED: Any = {"unique_while": "queued_or_running"}
COOLING = Conflict(key="k", task="t", phase="succeeded", retry_after=40.0)


def refusal(**options: Any) -> str:
    """Return the error text for a task with these options."""
    with pytest.raises(ConfigurationError) as caught:
        LockOptions(**options)
    return str(caught.value)


# -- defaults ----------------------------------------------------------------------


def test_options_have_defaults() -> None:
    """By default duplicates are skipped, and a lost lock stops the body."""
    resolved = LockOptions().resolve(settings(ttl=20))

    assert resolved.on_conflict(CONFLICT) == Skip()
    assert resolved.on_lock_lost(LOSS) == Abort()
    assert isinstance(resolved.on_backend_error(OUTAGE), Retry)
    assert (resolved.ttl, resolved.task.renew, resolved.task.hold_at_least) == (
        20.0,
        True,
        0.0,
    )
    assert not resolved.task.is_claimed
    assert not LockOptions().is_unique_before_it_runs


def test_options_take_precedence_over_settings() -> None:
    """An option of the task counts more than a setting of its app."""
    options = LockOptions(ttl=timedelta(seconds=10), on_backend_error="run")
    resolved = options.resolve(settings(ttl=20, on_backend_error="raise"))

    assert resolved.ttl == 10.0
    assert resolved.on_backend_error(OUTAGE) == Run()
    unsaid = LockOptions().resolve(settings(on_backend_error="raise"))
    assert unsaid.on_backend_error(OUTAGE) == Raise()


def test_wait_gets_its_timeout() -> None:
    """``wait_timeout`` is for a ``Wait`` without a timeout; 10 s."""
    said = LockOptions(on_conflict="wait", wait_timeout=5)
    unsaid = LockOptions(on_conflict=lambda _: Wait())

    assert said.resolve(settings()).on_conflict(CONFLICT) == Wait(5.0)
    assert unsaid.resolve(settings()).on_conflict(CONFLICT) == Wait(10.0)
    own = LockOptions(on_conflict=lambda _: Wait(60), wait_timeout=5)
    assert own.resolve(settings()).on_conflict(CONFLICT) == Wait(60.0)


def test_retry_gets_its_countdown() -> None:
    """``retry_countdown`` is for a ``Retry`` without a countdown."""
    options = LockOptions(
        on_conflict="retry", on_lock_lost="retry", retry_countdown=timedelta(minutes=1)
    )
    resolved = options.resolve(settings())

    assert resolved.on_conflict(CONFLICT) == Retry(60.0)
    assert resolved.on_lock_lost(LOSS) == Retry(60.0)
    own = LockOptions(on_conflict=Retry(5)).resolve(settings())
    assert own.on_conflict(CONFLICT) == Retry(5.0)


def test_call_out_of_turn_looks_soon_and_then_less_often() -> None:
    """Its worker starts it in its turn; the countdown is for one that cannot."""
    options = LockOptions(on_conflict="retry", in_order=True, ttl=20)
    resolved = options.resolve(settings())

    def seconds(deferrals: int) -> float:
        place = Place(1, 2, 0.01)
        facts: dict[str, Any] = {"deferrals": deferrals, "place": place}
        conflict = Conflict(key="k", task="t", phase="queued", **facts)
        return delay(resolved.on_conflict(conflict))

    assert seconds(0) <= 1.0
    assert seconds(3) <= 8.0
    assert 2.5 <= seconds(20) <= 10.0
    assert (resolved.task.in_order, resolved.task.has_backlog) == (True, True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "in_order needs on_conflict='retry'"),
        ({"on_conflict": "wait"}, "on_conflict is 'wait'"),
        ({"on_conflict": lambda _: "retry"}, "in_order needs on_conflict='retry'"),
        ({"on_conflict": "retry", "keys": ["a", "b"]}, "in_order is for one key"),
        ({"limit": 2}, "in_order makes no sense with limit=2"),
        ({"rate": "10/m"}, "in_order makes no sense with rate='10/m'"),
        ({"on_conflict": "retry", "unique_for": 5}, "a cool-down in which no call"),
        ({"on_conflict": "retry", "in_order": 1}, "in_order is 1; it must be True"),
    ],
)
def test_order_is_refused_where_there_is_none(
    options: dict[str, Any], reason: str
) -> None:
    """Where some calls do not come back, or several run at once."""
    assert reason in refusal(**{"in_order": True, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"on_conflict": "retry", "claim_ttl": 60},
        {"on_conflict": Retry(5), "unique_while": "queued"},
        {"on_conflict": {"publish": "skip", "execute": "retry"}, **QUEUED},
        {"limit": 1},
        {"limit": 1, "rate": "10/m"},
        {"on_conflict": "retry", "retry_countdown": 5},
    ],
)
def test_order_goes_with_other_options(options: dict[str, Any]) -> None:
    """One call of the key runs at a time, and each call comes back."""
    assert LockOptions(in_order=True, **options).in_order


def test_retry_countdown_is_half_the_ttl_at_random() -> None:
    """By default duplicates return after a quarter to three quarters of the ttl."""
    resolved = LockOptions(on_conflict="retry", ttl=20).resolve(settings())

    delays = {delay(resolved.on_conflict(CONFLICT)) for _ in range(100)}

    assert len(delays) > 90
    assert all(5 <= seconds <= 15 for seconds in delays)


def test_retry_countdown_leaves_an_outage_alone() -> None:
    """The countdown after an outage depends on the outage."""
    options = LockOptions(on_conflict="retry", retry_countdown=1000)

    decision = options.resolve(settings()).on_backend_error(OUTAGE)

    assert delay(decision) <= 15


def test_retry_in_a_cool_down_is_for_its_end() -> None:
    """The call would be republished again and again otherwise."""
    resolved = LockOptions(unique_for=60, on_conflict="retry").resolve(settings())

    assert 40.0 <= delay(resolved.on_conflict(COOLING)) <= 44.0
    chosen = LockOptions(unique_for=60, on_conflict="retry", retry_countdown=7)
    assert chosen.resolve(settings()).on_conflict(COOLING) == Retry(7)


def test_cool_down_has_no_running_call_to_cancel_or_to_follow() -> None:
    """Such a decision of a callable is to run, or to retry after the cool-down."""
    answers: list[Any] = ["cancel_running", BufferOne()]
    options = LockOptions(unique_for=60, on_conflict=lambda _: answers.pop(0))
    resolved = options.resolve(settings())

    assert resolved.on_conflict(COOLING) == Run()
    assert 40.0 <= delay(resolved.on_conflict(COOLING)) <= 44.0


@pytest.mark.parametrize("word", ["queued", "queued_or_running"])
def test_claim_lasts_an_hour_by_default(word: Any) -> None:
    """For longer queues ``claim_ttl`` sets more."""
    options = LockOptions(unique_while=word)

    assert options.is_unique_before_it_runs
    assert options.resolve(settings()).task.is_claimed
    assert options.resolve(settings()).task.claim_seconds == 3600
    day = LockOptions(unique_while=word, claim_ttl=timedelta(days=1))
    assert day.resolve(settings()).task.claim_seconds == 86_400


@pytest.mark.parametrize("seconds", [60, timedelta(minutes=1)])
def test_cool_down_is_a_duration(seconds: Any) -> None:
    """It needs no claim: a publisher does not look for a waiting job."""
    resolved = LockOptions(unique_for=seconds).resolve(settings())

    assert LockOptions(unique_for=seconds).is_unique_before_it_runs
    assert (resolved.task.unique_for, resolved.task.is_claimed) == (60.0, False)


def test_options_make_the_key_rule() -> None:
    """The rule that reduces calls to keys is checked against the task."""
    signature = inspect.signature(lambda a, b=2: (a, b))

    template = KeyRule("t", signature, LockOptions(key="{a}"))
    subset = KeyRule("t", signature, LockOptions(unique_on=["b"]))

    assert template.key_of([7], {}) == "7"
    assert subset.key_of([7], {}) == subset.key_of([8], {})
    with pytest.raises(ConfigurationError, match="'c'"):
        KeyRule("t", signature, LockOptions(key="{c}"))


# -- options that go together ------------------------------------------------------


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
        {"retry_countdown": 5, "on_lock_lost": Retry(), "on_conflict": Retry(7)},
        {"retry_countdown": 5, "on_conflict": BufferOne("first")},
        {"buffer_keep": "first", "on_conflict": {"execute": "buffer_one"}},
        {**QUEUED, "on_conflict": "retry"},
        {**QUEUED, "on_conflict": "wait", "wait_timeout": 5},
        {**QUEUED, "on_conflict": "cancel_running"},
        {**CLAIMED, "on_conflict": "raise", "claim_ttl": 60},
        {**QUEUED, "unique_for": 60, "on_conflict": "retry"},
        {"unique_for": 60, "on_conflict": {"publish": "raise", "execute": "retry"}},
        {**CLAIMED, "on_conflict": {"publish": "allow", "execute": "buffer_one"}},
        {
            **CLAIMED,
            "on_conflict": {"publish": lambda _: "allow", "execute": "cancel_running"},
        },
        {**QUEUED, "on_conflict": {"execute": "wait"}},
        {**QUEUED, "on_conflict": lambda _: Wait()},
    ],
)
def test_options_that_go_together_are_accepted(options: dict[str, Any]) -> None:
    """A callable may return any decision, so it may use any option."""
    resolved = LockOptions(**options).resolve(settings())

    published = resolved.on_publish(Conflict(key="k", task="t", stage="publish"))

    assert isinstance(published, PublishDecision)


@pytest.mark.parametrize(
    "options",
    [
        {"on_conflict": "buffer_one", "buffer_keep": "first", "retry_countdown": 5},
        {"on_conflict": "cancel_running", "cancel_grace": timedelta(seconds=5)},
        {"on_conflict": lambda _: "skip", "buffer_keep": "first", "renew": False},
        {"on_conflict": {"execute": "buffer_one"}, "buffer_keep": "first"},
    ],
)
def test_policy_may_need_the_successor_register(options: dict[str, Any]) -> None:
    """Publishers then note when a call was published."""
    assert LockOptions(**options).registers_successors
    assert not LockOptions(on_conflict="retry").registers_successors


def test_running_call_learns_of_a_request_to_end_within_a_second() -> None:
    """The lock of a task that may be cancelled is renewed every second."""
    cancelled = LockOptions(on_conflict="cancel_running").resolve(settings())
    asked = LockOptions(on_conflict=lambda _: "skip").resolve(settings())

    assert (cancelled.task.renew_every, cancelled.task.keeps) == (1.0, "latest")
    assert (asked.task.renew_every, asked.task.keeps) == (1.0, "")
    assert LockOptions().resolve(settings()).task.renew_every is None
    not_renewed = LockOptions(on_conflict=lambda _: "skip", renew=False)
    assert not_renewed.resolve(settings()).task.renew_every is None


@pytest.mark.parametrize(
    ("options", "grace"),
    [
        ({"on_conflict": "cancel_running"}, 10.0),
        ({"on_conflict": "cancel_running", "cancel_grace": 60}, 60.0),
        ({"on_conflict": CancelRunning(grace=60)}, 60.0),
        ({"on_conflict": {"execute": CancelRunning(grace=60)}}, 60.0),
        ({"on_conflict": CancelRunning(), "cancel_grace": 5}, 5.0),
        ({"on_conflict": lambda _: CancelRunning(grace=60), "cancel_grace": 5}, 5.0),
    ],
)
def test_cancelled_body_has_the_grace_of_the_decision(
    options: dict[str, Any], grace: float
) -> None:
    """It is that for which the newcomer waits, where the task names one decision."""
    assert LockOptions(**options).grace_of_cancelled == grace


@pytest.mark.parametrize(
    ("on_lock_lost", "needs"),
    [("abort", False), ("warn", False), ("retry", True), (lambda _: "abort", True)],
)
def test_arguments_are_kept_where_a_loss_may_need_them(
    on_lock_lost: Any, *, needs: bool
) -> None:
    """A call that is republished after its body must have its first arguments."""
    options = LockOptions(on_lock_lost=on_lock_lost)

    assert options.resolve(settings()).task.needs_arguments == needs


# -- options that are wrong --------------------------------------------------------


@pytest.mark.parametrize("wrong", ["on_conflit", "tll", "unique"])
def test_unknown_option_is_refused(wrong: str) -> None:
    """The error suggests the nearest option."""
    said = refusal(**{wrong: 1})

    assert said.startswith(f"There is no lock option '{wrong}'. Did you mean '")


@pytest.mark.parametrize("name", ["ttl", "wait_timeout", "retry_countdown"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, "30"])
def test_option_that_is_no_duration_is_refused(name: str, value: Any) -> None:
    """A duration is a finite number of seconds above 0."""
    said = refusal(**{name: value, "on_conflict": lambda _: "skip"})

    assert said == f"{name} is {value!r}; it must be a number of seconds above 0."


@pytest.mark.parametrize("name", ["hold_at_least", "unique_for"])
@pytest.mark.parametrize(
    "value", [-1, timedelta(seconds=-1), math.nan, math.inf, True, False, None, "30"]
)
def test_duration_that_may_be_zero_is_nothing_less(name: str, value: Any) -> None:
    """0 is the default; any other value is a duration, and the error says both."""
    for none in (0, timedelta(0)):
        given: dict[str, Any] = {name: none}
        assert getattr(LockOptions(**given), name) == 0.0
    assert refusal(**{name: value}) == (
        f"{name} is {value!r}; it must be 0 or a number of seconds above 0."
    )


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
        ({"on_conflict": "buffer_one", "buffer_keep": "last"}, "does not exist"),
        ({"on_conflict": "cancel_running", "cancel_grace": 0}, "above 0"),
        ({"unique_while": "queud"}, "Did you mean 'queued'"),
        ({"unique_while": True}, "does not exist"),
        ({**QUEUED, "claim_ttl": 0}, "claim_ttl"),
        ({"unique_for": -1}, "unique_for"),
        ({"unique_for": "5"}, "unique_for"),
        (
            {**QUEUED, "on_conflict": {"publish": "skip", "run": "skip"}},
            "is not a policy",
        ),
        # options that make no sense together
        ({"claim_ttl": 5}, "claim_ttl has no effect with unique_while='running'"),
        ({"claim_ttl": 5, "unique_for": 5}, "waiting jobs are not claimed"),
        ({"on_conflict": {"publish": "skip"}}, "does not look for duplicates"),
        ({"unique_for": 5, "on_conflict": "wait"}, "keep a worker process busy"),
        ({"unique_for": 5, "on_conflict": Wait(1)}, "Use 'retry' to run after it"),
        ({"unique_for": 5, "on_conflict": {"execute": "wait"}}, "process busy"),
        ({"unique_for": 5, "on_conflict": "buffer_one"}, "would come within it"),
        ({"unique_for": 5, "on_conflict": "cancel_running"}, "nothing left to cancel"),
        ({"on_conflict": "cancel_running", "renew": False}, "needs renew=True"),
        ({"on_conflict": CancelRunning(), "renew": False}, "needs renew=True"),
        (
            {**QUEUED, "on_conflict": "buffer_one"},
            "'queued' with on_conflict='retry' lets one more run follow",
        ),
        ({**CLAIMED, "on_conflict": BufferOne()}, "needs the duplicate in the queue"),
        (
            {**CLAIMED, "on_conflict": "cancel_running"},
            "{'publish': 'allow', 'execute': 'cancel_running'}",
        ),
        (
            {
                **CLAIMED,
                "on_conflict": {"publish": "raise", "execute": CancelRunning()},
            },
            "keeps it out",
        ),
    ],
)
def test_option_that_is_wrong_is_refused(options: dict[str, Any], fault: str) -> None:
    """The error at decoration names the option, or gives the reason."""
    assert fault in refusal(**options)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"wait_timeout": 5}, "on_conflict='wait'"),
        ({"wait_timeout": 5, "on_conflict": "retry"}, "on_conflict='wait'"),
        ({"wait_timeout": 5, "on_conflict": Skip()}, "on_conflict='wait'"),
        ({"wait_timeout": 5, "on_conflict": "buffer_one"}, "on_conflict='wait'"),
        ({"retry_countdown": 5}, "on_conflict='retry'"),
        ({"retry_countdown": 5, "on_conflict": "wait"}, "on_conflict='retry'"),
        ({"retry_countdown": 5, "on_conflict": "cancel_running"}, "='buffer_one'"),
        ({"retry_countdown": 5, "on_conflict": {"execute": "skip"}}, "='retry'"),
        ({"buffer_keep": "first"}, "on_conflict='buffer_one'"),
        ({"buffer_keep": "latest", "on_conflict": "cancel_running"}, "='buffer_one'"),
        ({"cancel_grace": 5}, "on_conflict='cancel_running'"),
        ({"cancel_grace": 5, "on_conflict": "buffer_one"}, "='cancel_running'"),
        ({"wait_timeout": 5, "on_conflict": Wait(7)}, "on_conflict='wait'"),
        ({"retry_countdown": 5, "on_conflict": Retry(7)}, "on_conflict='retry'"),
        ({"retry_countdown": 5, "on_conflict": BufferOne(countdown=7)}, "='retry'"),
        ({"buffer_keep": "first", "on_conflict": BufferOne("latest")}, "='buffer_one'"),
        ({"cancel_grace": 5, "on_conflict": CancelRunning(7)}, "='cancel_running'"),
    ],
)
def test_option_without_effect_is_refused(options: dict[str, Any], remedy: str) -> None:
    """An option that no policy of the task reads is a misunderstanding."""
    said = refusal(**options)

    assert "has no effect with on_conflict=" in said
    assert remedy in said


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"ttl": 61}, "proj.f: The ttl of 61 s is above max_ttl (60 s)"),
        ({"ttl": 0.1}, "proj.f: The ttl of 0.1 s is not above three"),
        ({"hold_at_least": 61}, "proj.f: hold_at_least is 61 s, above redlock_max_ttl"),
    ],
)
def test_option_that_does_not_go_with_the_settings_is_refused(
    options: dict[str, Any], fault: str
) -> None:
    """The error names the task."""
    with pytest.raises(ConfigurationError) as caught:
        LockOptions(**options).resolve(settings(), "proj.f")

    assert str(caught.value).startswith(fault)


# -- limits ------------------------------------------------------------------------

SEVERAL_AT_ONCE = [{"limit": 2}, {"rate": "2/s"}, {"keys": {"a": 1, "b": 2}}]
WITH_PERMITS = [*SEVERAL_AT_ONCE, {"rate": "1/s"}, {"limit": 1, "rate": "2/s"}]


@pytest.mark.parametrize("options", [*WITH_PERMITS, {"limit": 1}])
def test_jobs_that_wait_for_a_permit_are_retried(options: dict[str, Any]) -> None:
    """They are no duplicates but a backlog. The options show the policy."""
    assert "on_conflict='retry'" in repr(LockOptions(**options))
    resolved = LockOptions(**options, retry_countdown=7).resolve(settings())
    assert resolved.on_conflict(CONFLICT) == Retry(7)

    said = LockOptions(**options, on_conflict="skip")

    assert said.resolve(settings()).on_conflict(CONFLICT) == Skip()


@pytest.mark.parametrize(
    ("on_conflict", "stays_after_countdown"),
    [
        ("retry", True),
        (Retry(7), True),
        (lambda _: "retry", False),
        ("buffer_one", False),
    ],
)
def test_only_a_retry_need_not_be_asked_again(
    on_conflict: Any, *, stays_after_countdown: bool
) -> None:
    """A callable may decide otherwise the next time, and an order may have changed."""
    options = LockOptions(on_conflict=on_conflict)

    assert (
        options.resolve(settings()).task.stays_after_countdown is stays_after_countdown
    )


def test_duplicate_is_skipped_where_every_key_has_one_holder() -> None:
    """Also where the keys have limits, and all of them are 1."""
    for keys in (["a", "b"], {"a": 1, "b": 1}):
        assert LockOptions(keys=keys).on_conflict == "skip"
    assert LockOptions(on_conflict=None).on_conflict == "skip"


def test_policy_at_publishing_leaves_the_default_for_workers() -> None:
    """``{"publish": ...}`` alone: a refused job is retried, and not skipped."""
    by_stage: Any = {"publish": "raise"}
    options = LockOptions(**QUEUED, limit=5, on_conflict=by_stage)
    resolved = options.resolve(settings())

    assert isinstance(resolved.on_conflict(CONFLICT), Retry)
    assert resolved.on_publish(CONFLICT) == Raise()
    assert by_stage == {"publish": "raise"}


def test_limit_is_for_one_key() -> None:
    """The error shows the same limits as they are written for several keys."""
    assert "keys={'a': 5, 'b': 5}" in refusal(limit=5, keys=["a", "b"])
    assert "keys={'a': 5}" in refusal(limit=5, keys={"a": 1})


@pytest.mark.parametrize("value", [0, -1, 1001, 2.0, True, "5"])
def test_limit_that_is_no_number_of_permits_is_refused(value: Any) -> None:
    """It is a whole number from 1 to 1000."""
    words = "must be a whole number from 1 to 1000"

    assert refusal(limit=value).startswith(f"limit is {value!r}; it {words}")
    said = refusal(keys={"a": 1, "b": value})
    assert said.startswith(f"The limit of the key 'b' is {value!r}; it {words}")


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("10/y", "there is no unit 'y'. Write a number of starts and a unit"),
        ("0/s", "the number of starts must be from 1 to 1000"),
        ("6000/h", "For more, shorten the period: 6000/h is 100/m"),
        ("9", "Write a number of starts and a unit"),
        (10, "Write a number of starts and a unit"),
        ((10, 0), "must be a number of seconds above 0"),
        ((10, timedelta(0)), "must be a number of seconds above 0"),
        ((10, True), "must be a number of seconds above 0"),
        ((True, 5), "from 1 to 1000"),
        ((10, "m"), "Write a number of starts and a unit"),
    ],
)
def test_rate_that_cannot_be_used_is_refused(value: Any, fault: str) -> None:
    """The error names the remedy."""
    assert fault in refusal(rate=value)


@pytest.mark.parametrize("word", ["buffer_one", "cancel_running"])
@pytest.mark.parametrize("options", WITH_PERMITS)
def test_policy_that_needs_one_running_call_is_refused(
    options: dict[str, Any], word: str
) -> None:
    """Of several permits no call is the one to follow, or to cancel."""
    said = refusal(**options, on_conflict=word)

    assert f"on_conflict={word!r} needs " in said
    assert "Write on_conflict='retry' or 'wait', or " in said


@pytest.mark.parametrize("word", ["buffer_one", "cancel_running"])
def test_policy_that_needs_one_running_call_goes_with_one_holder(word: Any) -> None:
    """A limit of 1 is a lock."""
    assert LockOptions(limit=1, on_conflict=word).registers_successors


@pytest.mark.parametrize("options", [*WITH_PERMITS, {"keys": ["a"]}])
def test_callable_of_a_task_with_permits_needs_no_register(
    options: dict[str, Any],
) -> None:
    """It cannot return what needs one: nothing is noted, and renewals are no faster."""
    said = LockOptions(**options, on_conflict=lambda _: "skip")

    assert not said.registers_successors
    assert said.resolve(settings()).task.renew_every is None


@pytest.mark.parametrize("options", SEVERAL_AT_ONCE)
def test_running_call_is_no_duplicate_where_several_run(
    options: dict[str, Any],
) -> None:
    """A claim of a waiting job goes with limits; one of a running job does not."""
    assert LockOptions(**options, **QUEUED).is_unique_before_it_runs
    assert "Write unique_while='queued'" in refusal(**options, **CLAIMED)
    assert LockOptions(limit=1, **CLAIMED).is_unique_before_it_runs
    assert LockOptions(rate="1/s", **CLAIMED).is_unique_before_it_runs


@pytest.mark.parametrize("options", WITH_PERMITS)
def test_cool_down_does_not_go_with_permits(options: dict[str, Any]) -> None:
    """The rate limits starts."""
    said = refusal(**options, unique_for=60)

    assert "unique_for makes no sense with" in said
    assert "rate" in said
    assert LockOptions(limit=1, unique_for=60).unique_for == 60.0


# -- which of the decorator's arguments they are -----------------------------------


def test_decorator_arguments_are_split() -> None:
    """Lock options are separated from the arguments of Celery's decorator."""
    given = {"key": "x", "name": "n", "bind": True, "retry_backoff": 2, "queue": "q"}

    ours, rest = LockOptions.split(given)

    assert ours == {"key": "x"}
    assert rest == {"name": "n", "bind": True, "retry_backoff": 2, "queue": "q"}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        *(("on_conflit", "on_conflict"), ("onConflict", "on_conflict")),
        *(("limits", "limit"), ("unique", "unique_on"), ("UNIQUE_FOR", "unique_for")),
        *(
            ("tll", "ttl"),
            ("tlt", "ttl"),
            ("ttll", "ttl"),
            ("tl", "ttl"),
            ("TTL", "ttl"),
        ),
        *(("ket", "key"), ("kye", "key"), ("Key", "key"), ("kets", "keys")),
        *(("rare", "rate"), ("raet", "rate"), ("wait", "wait_timeout")),
        *(("on_lost", "on_lock_lost"), ("cooldown", "unique_for")),
    ],
)
def test_misspelt_decorator_argument_is_refused(wrong: str, right: str) -> None:
    """Celery would silently accept a typing error as an attribute of the task."""
    with pytest.raises(ConfigurationError) as refused:
        LockOptions.split({wrong: 1})

    assert f"Did you mean {right!r}?" in str(refused.value)
    assert "attribute of your own" in str(refused.value)
    assert LockOptions.split({wrong: 1}, foreign=[wrong]) == ({}, {wrong: 1})


def test_option_stays_one_that_a_class_has_too() -> None:
    """The decorator reads it, and not the class of the project."""
    assert LockOptions.split({"ttl": 5}, foreign=["ttl"]) == ({"ttl": 5}, {})


def test_options_of_celery_are_no_typing_errors() -> None:
    """Options of Celery's own decorator, and words that have a few letters of ours."""
    celerys = TaskArguments.__annotations__.keys() - LockOptions.names()
    words = (
        "title",
        "total",
        "monkey",
        "retries",
        "rates_by_country",
        "url",
        "api_key",
    )
    given = dict.fromkeys((*celerys, *words, "countdown", "on_error", "lock"))

    assert LockOptions.split(given) == ({}, given)


def test_rate_limit_is_an_option_of_celery() -> None:
    """It counts per worker. Its name is near to ours, and stays what it is."""
    given = {"rate": "10/m", "rate_limit": "3/s", "time_limit": 5, "limit": 2}

    ours, rest = LockOptions.split(given)

    assert ours == {"rate": "10/m", "limit": 2}
    assert rest == {"rate_limit": "3/s", "time_limit": 5}
    assert "Did you mean 'limit'?" in refusal(limits=5)
