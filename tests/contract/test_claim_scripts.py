"""What publishers tell the nodes: the same of a node in memory and of real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.scripts import (
    CLAIM,
    COOL_DOWN,
    FREE,
    FREE_CLAIM,
    GRANTED,
    KEEP_CLAIM,
    TAKEN,
)
from celery_redlock.core.wire import ErrorReply
from tests.contract.subjects import TTL

if TYPE_CHECKING:
    from tests.contract.subjects import Subject

SHORT = 30  # ms, for what is to end
NO_KEY = -2  # what PTTL says
KINDS = ("claim", "lock", "cooldown")


def name(subject: Subject, kind: str = "claim") -> str:
    """Return the name of a key about the call ``c``."""
    return f"{subject.prefix}:{kind}:c"


def facts(job: str, phase: str = "queued") -> str:
    """Return what is noted beside a job."""
    return f"send_invoice\n{job}\nhost\n4711\n1.5\n{phase}"


def claim(subject: Subject, job: str, *, at: str = "", ttl_ms: int = TTL) -> Any:
    """Run CLAIM, looking also at what is named."""
    keys = [name(subject, kind) for kind in KINDS]
    flags = [int(kind in at) for kind in KINDS[1:]]
    return subject.run(CLAIM, keys, [job, facts(job), ttl_ms, *flags])


def keep(subject: Subject, job: str, ttl_ms: int = TTL) -> Any:
    """Run KEEP_CLAIM."""
    return subject.run(KEEP_CLAIM, [name(subject)], [job, ttl_ms])


def free(subject: Subject, job: str) -> Any:
    """Run FREE_CLAIM."""
    return subject.run(FREE_CLAIM, [name(subject)], [job])


def cool_down(subject: Subject, job: str, ttl_ms: int = TTL) -> Any:
    """Run COOL_DOWN."""
    words = [job, facts(job, "succeeded"), ttl_ms]
    return subject.run(COOL_DOWN, [name(subject, "cooldown")], words)


def locked_by(subject: Subject, job: str) -> None:
    """Let a lock be held by this job."""
    value = f"base.attempt\n7\nsend_invoice\n{job}\nhost\n4711\n1.5"
    subject.set(name(subject, "lock"), value, px=TTL)


# -- CLAIM -----------------------------------------------------------------------


def test_claim_is_for_the_first(subject: Subject) -> None:
    """A second job is told which one has the claim, with its facts, and till when."""
    assert claim(subject, "job-1") == [GRANTED, 0]

    status, value, left = claim(subject, "job-2")

    assert (status, value.decode()) == (TAKEN, f"job-1\n0\n{facts('job-1')}")
    assert 0 < left <= TTL


def test_claim_by_the_same_job_is_granted_again(subject: Subject) -> None:
    """A repetition is no rival, and begins the ttl anew."""
    claim(subject, "job-1", ttl_ms=SHORT)

    assert claim(subject, "job-1") == [GRANTED, 0]
    assert subject.pttl(name(subject)) > SHORT


def test_claim_ends_by_itself(subject: Subject) -> None:
    """A publisher that died keeps nobody out for long."""
    claim(subject, "job-1", ttl_ms=SHORT)

    subject.wait_until(lambda: claim(subject, "job-2") == [GRANTED, 0])


@pytest.mark.parametrize("job", ["job-1", "job", "job-12", "-", "%d", "a.b*c"])
def test_claim_tells_jobs_apart_by_their_whole_name(subject: Subject, job: str) -> None:
    """Neither a part of a name nor a pattern stands for another job."""
    claim(subject, job)

    assert claim(subject, "job-1x")[0] == TAKEN
    assert claim(subject, job)[0] == GRANTED


def test_claim_looks_at_the_lock_when_told_to(subject: Subject) -> None:
    """The job that runs is named as a claim would name it: by its id, first."""
    locked_by(subject, "job-1")

    status, value, left = claim(subject, "job-2", at="lock")

    assert (status, value.split(b"\n")[:4]) == (
        TAKEN,
        [b"job-1", b"7", b"send_invoice", b"job-1"],
    )
    assert 0 < left <= TTL
    assert subject.pttl(name(subject)) == NO_KEY
    assert claim(subject, "job-2") == [GRANTED, 0]


def test_claim_looks_at_the_cooldown_when_told_to(subject: Subject) -> None:
    """The job that has succeeded is named, with what is left of its cool-down."""
    cool_down(subject, "job-1")

    status, value, left = claim(subject, "job-2", at="cooldown")

    assert (status, value.decode()) == (
        TAKEN,
        f"job-1\n0\n{facts('job-1', 'succeeded')}",
    )
    assert 0 < left <= TTL
    assert claim(subject, "job-2", at="lock") == [GRANTED, 0]


def test_claim_is_not_hindered_by_what_is_its_own(subject: Subject) -> None:
    """A job that retries has a lock, and may have succeeded before."""
    locked_by(subject, "job-1")
    cool_down(subject, "job-1")

    assert claim(subject, "job-1", at="lock cooldown") == [GRANTED, 0]


@pytest.mark.parametrize(
    "value", ["theirs", "", "a\nb\nc", "base.attempt\n7\n\n\nhost"]
)
def test_claim_passes_over_a_lock_without_a_job(subject: Subject, value: str) -> None:
    """What was locked outside of a task, or is not ours, is no job of the call."""
    subject.set(name(subject, "lock"), value, px=TTL)

    assert claim(subject, "job-1", at="lock") == [GRANTED, 0]


def test_claim_names_the_job_that_waits_before_the_one_that_runs(
    subject: Subject,
) -> None:
    """All nodes name the same one, where a call waits and another runs."""
    claim(subject, "waiting")
    locked_by(subject, "running")
    cool_down(subject, "done")

    assert claim(subject, "new", at="lock cooldown")[1].startswith(b"waiting\n")
    free(subject, "waiting")
    assert claim(subject, "new", at="lock cooldown")[1].startswith(b"running\n")
    subject.delete(name(subject, "lock"))
    assert claim(subject, "new", at="lock cooldown")[1].startswith(b"done\n")


# -- KEEP_CLAIM and FREE_CLAIM -----------------------------------------------------


def test_keep_makes_a_claim_last(subject: Subject) -> None:
    """A pending claim is made long once the job is in the queue."""
    claim(subject, "job-1", ttl_ms=SHORT)

    assert keep(subject, "job-1") == [GRANTED, 0]
    assert subject.pttl(name(subject)) > SHORT


def test_keep_never_makes_a_claim(subject: Subject) -> None:
    """A job that has begun meanwhile has freed it, and it stays free."""
    assert keep(subject, "job-1") == [FREE]

    claim(subject, "job-2", ttl_ms=SHORT)

    assert keep(subject, "job-1") == keep(subject, "job") == [FREE]
    assert subject.pttl(name(subject)) <= SHORT


def test_free_gives_back_what_is_ours_only(subject: Subject) -> None:
    """The claim of a successor is left alone, and twice is harmless."""
    claim(subject, "job-1")

    assert free(subject, "job") == free(subject, "job-12") == [FREE]
    assert claim(subject, "job-2")[0] == TAKEN
    assert free(subject, "job-1") == [GRANTED, 0]
    assert free(subject, "job-1") == [FREE]
    assert subject.pttl(name(subject)) == NO_KEY


# -- COOL_DOWN -----------------------------------------------------------------------


def test_cool_down_is_of_the_last(subject: Subject) -> None:
    """Where several succeed, each begins it anew."""
    cool_down(subject, "job-1", SHORT)

    assert cool_down(subject, "job-2") == [GRANTED, 0]
    assert claim(subject, "job-3", at="cooldown")[1].startswith(b"job-2\n")
    assert subject.pttl(name(subject, "cooldown")) > SHORT


def test_cool_down_ends(subject: Subject) -> None:
    """It is kept for as long as was said."""
    cool_down(subject, "job-1", SHORT)

    subject.wait_until(lambda: claim(subject, "job-2", at="cooldown") == [GRANTED, 0])


# -- all of them -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_claim_at_a_key_of_another_type_is_an_error_reply(
    subject: Subject, kind: str
) -> None:
    """Somebody else's key of that name is an error of that node, and no crash."""
    subject.hset(name(subject, kind), "field", "theirs")

    reply = claim(subject, "job-1", at="lock cooldown")

    assert isinstance(reply, ErrorReply)
    assert "WRONGTYPE" in str(reply)


@pytest.mark.parametrize("call", [keep, free])
def test_call_at_a_key_of_another_type_is_an_error_reply(
    subject: Subject, call: Any
) -> None:
    """The same of those who only touch a claim that is there."""
    subject.hset(name(subject), "field", "theirs")

    reply = call(subject, "job-1")

    assert isinstance(reply, ErrorReply)
    assert "WRONGTYPE" in str(reply)
