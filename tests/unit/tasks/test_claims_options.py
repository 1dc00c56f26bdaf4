"""Which options say that a call is unique before it runs, and which go together."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_redlock import ConfigurationError, singleton_task
from celery_redlock.options import LockOptions
from celery_redlock.policies import Raise, Retry, Run, Skip, Wait
from celery_redlock.settings import Settings
from celery_redlock.situations import BufferOne, CancelRunning, Conflict

SETTINGS = Settings.of({"redlock_nodes": ["redis://a:1"]})
COOLING = Conflict(key="k", task="t", phase="succeeded", retry_after=40.0)


def test_call_is_unique_while_it_runs_by_default() -> None:
    """Nothing is claimed, and nobody is asked when a call is published."""
    options = LockOptions()

    assert not options.is_unique_before_it_runs
    assert not options.resolve(SETTINGS).is_claimed


@pytest.mark.parametrize("word", ["queued", "queued_or_running"])
def test_claim_lasts_an_hour_by_default(word: str) -> None:
    """A day's queue wants more, and says so."""
    options = LockOptions(unique_while=word)

    assert options.is_unique_before_it_runs
    assert options.resolve(SETTINGS).is_claimed
    assert options.resolve(SETTINGS).claim_ttl == 3600
    day = LockOptions(unique_while=word, claim_ttl=timedelta(days=1))
    assert day.resolve(SETTINGS).claim_ttl == 86_400


@pytest.mark.parametrize("seconds", [60, timedelta(minutes=1)])
def test_cool_down_is_a_duration(seconds: Any) -> None:
    """It needs no claim: a job that waits is not looked for."""
    resolved = LockOptions(unique_for=seconds).resolve(SETTINGS)

    assert LockOptions(unique_for=seconds).is_unique_before_it_runs
    assert (resolved.unique_for, resolved.is_claimed) == (60.0, False)


def test_retry_after_a_success_is_for_the_end_of_the_cool_down() -> None:
    """It would be put back again and again otherwise."""
    resolved = LockOptions(unique_for=60, on_conflict="retry").resolve(SETTINGS)

    decision = resolved.on_conflict(COOLING)

    assert isinstance(decision, Retry)
    assert isinstance(decision.countdown, float)
    assert 40.0 <= decision.countdown <= 44.0
    chosen = LockOptions(unique_for=60, on_conflict="retry", retry_countdown=7)
    assert chosen.resolve(SETTINGS).on_conflict(COOLING) == Retry(7)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"unique_while": "queud"}, "Did you mean 'queued'"),
        ({"unique_while": True}, "does not exist"),
        ({"unique_while": "queued", "claim_ttl": 0}, "claim_ttl"),
        ({"unique_for": -1}, "unique_for"),
        ({"unique_for": "5"}, "unique_for"),
        ({"claim_ttl": 5}, "claim_ttl has no effect with unique_while='running'"),
        ({"claim_ttl": 5, "unique_for": 5}, "jobs that wait are not claimed"),
        ({"on_conflict": {"publish": "skip"}}, "nobody looks for a duplicate before"),
        ({"unique_for": 5, "on_conflict": "wait"}, "keep a worker's slot busy"),
        ({"unique_for": 5, "on_conflict": Wait(1)}, "Use 'retry' to run after it"),
        ({"unique_for": 5, "on_conflict": {"execute": "wait"}}, "slot busy"),
        ({"unique_for": 5, "on_conflict": "buffer_one"}, "would come within it"),
        ({"unique_for": 5, "on_conflict": "cancel_running"}, "nothing left to cancel"),
        (
            {"unique_while": "queued", "on_conflict": "buffer_one"},
            "'queued' alone lets one more run follow",
        ),
        (
            {"unique_while": "queued_or_running", "on_conflict": BufferOne()},
            "needs the duplicate in the queue",
        ),
        (
            {"unique_while": "queued_or_running", "on_conflict": "cancel_running"},
            "{'publish': 'allow', 'execute': 'cancel_running'}",
        ),
        (
            {
                "unique_while": "queued_or_running",
                "on_conflict": {"publish": "raise", "execute": CancelRunning()},
            },
            "keeps it out",
        ),
        (
            {"unique_while": "queued", "on_conflict": {"publish": "wait"}},
            r"on_conflict['publish']='wait' does not exist",
        ),
        (
            {
                "unique_while": "queued",
                "on_conflict": {"publish": "skip", "run": "skip"},
            },
            "is no policy",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_at_decoration(
    options: dict[str, Any], reason: str
) -> None:
    """Each with the reason, before anything is published."""
    with pytest.raises(ConfigurationError) as refusal:

        @singleton_task(shared=False, name="refused", **options)
        def job() -> None: ...

    assert reason in str(refusal.value)


@pytest.mark.parametrize(
    "options",
    [
        {"unique_while": "queued", "on_conflict": "retry"},
        {"unique_while": "queued", "on_conflict": "wait", "wait_timeout": 5},
        {"unique_while": "queued", "on_conflict": "cancel_running"},
        {"unique_while": "queued_or_running", "on_conflict": "raise", "claim_ttl": 60},
        {"unique_while": "queued", "unique_for": 60, "on_conflict": "retry"},
        {"unique_for": 60, "on_conflict": {"publish": "raise", "execute": "retry"}},
        {
            "unique_while": "queued_or_running",
            "on_conflict": {"publish": "allow", "execute": "buffer_one"},
        },
        {
            "unique_while": "queued_or_running",
            "on_conflict": {"publish": lambda _: "allow", "execute": "cancel_running"},
        },
        {"unique_while": "queued", "on_conflict": {"execute": "wait"}},
        {"unique_while": "queued", "on_conflict": lambda _: Wait()},
    ],
)
def test_what_makes_sense_is_taken(options: dict[str, Any]) -> None:
    """Each can be written, and is asked at its stage."""
    resolved = LockOptions(**options).resolve(SETTINGS)

    published = resolved.on_publish(Conflict(key="k", task="t", stage="publish"))

    assert isinstance(published, (Skip, Raise, Run))
