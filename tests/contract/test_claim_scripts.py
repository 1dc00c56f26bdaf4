"""The scripts of claims and cool-downs, reply by reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.scripts import (
    CLAIM,
    COOL_DOWN,
    FREE,
    GRANTED,
    KEEP_CLAIM,
    RELEASE_CLAIM,
    TAKEN,
)
from tests.contract.subjects import NO_KEY, SHORT, TTL

if TYPE_CHECKING:
    from tests.contract.subjects import Subject

KINDS = ("claim", "lock", "cooldown")


def key(subject: Subject, kind: str = "claim") -> str:
    """Return a key of the call ``c``."""
    return subject.key(f"{kind}:c")


def holder_info(job: str, phase: str = "queued") -> str:
    """Return the text that is stored with a job."""
    return f"send_invoice\n{job}\nhost\n4711\n1.5\n{phase}"


def claim(subject: Subject, job: str, *, at: str = "", ttl_ms: int = TTL) -> Any:
    """Run CLAIM; ``at`` names which other keys it checks."""
    keys = [key(subject, kind) for kind in KINDS]
    checks = [int(kind in at) for kind in KINDS[1:]]
    return subject.run(CLAIM, keys, [job, holder_info(job), ttl_ms, *checks])


def keep(subject: Subject, job: str, ttl_ms: int = TTL) -> Any:
    """Run KEEP_CLAIM."""
    return subject.run(KEEP_CLAIM, [key(subject)], [job, ttl_ms])


def release(subject: Subject, job: str) -> Any:
    """Run RELEASE_CLAIM."""
    return subject.run(RELEASE_CLAIM, [key(subject)], [job])


def cool_down(subject: Subject, job: str, ttl_ms: int = TTL) -> Any:
    """Run COOL_DOWN."""
    args = [job, holder_info(job, "succeeded"), ttl_ms]
    return subject.run(COOL_DOWN, [key(subject, "cooldown")], args)


def lock(subject: Subject, job: str) -> None:
    """Write a lock that this job holds."""
    value = f"base.attempt\n7\nsend_invoice\n{job}\nhost\n4711\n1.5"
    subject.set(key(subject, "lock"), value, px=TTL)


# -- CLAIM ---------------------------------------------------------------------


def test_claim_is_for_the_first(subject: Subject) -> None:
    """The reply to a second job has the first one, its holder_info and its ttl."""
    assert claim(subject, "job-1") == [GRANTED, 0]

    status, value, left = claim(subject, "job-2")

    assert (status, value.decode()) == (TAKEN, f"job-1\n0\n{holder_info('job-1')}")
    assert 0 < left <= TTL


def test_claim_by_the_same_job_is_granted_again(subject: Subject) -> None:
    """A repetition starts the ttl anew."""
    claim(subject, "job-1", ttl_ms=SHORT)

    assert claim(subject, "job-1") == [GRANTED, 0]
    assert subject.pttl(key(subject)) > SHORT


def test_claim_expires(subject: Subject) -> None:
    """A publisher that died does not refuse others for long."""
    claim(subject, "job-1", ttl_ms=SHORT)

    subject.wait_until(lambda: claim(subject, "job-2") == [GRANTED, 0])


@pytest.mark.parametrize("job", ["job-1", "job", "job-12", "-", "%d", "a.b*c"])
def test_claim_compares_whole_job_names(subject: Subject, job: str) -> None:
    """Neither a part of a name nor a pattern matches another job."""
    claim(subject, job)

    assert claim(subject, "job-1x")[0] == TAKEN
    assert claim(subject, job)[0] == GRANTED


def test_claim_checks_the_lock_on_request(subject: Subject) -> None:
    """The value of the running job begins with its id, as that of a claim does."""
    lock(subject, "job-1")

    status, value, left = claim(subject, "job-2", at="lock")

    assert status == TAKEN
    assert value.split(b"\n")[:4] == [b"job-1", b"7", b"send_invoice", b"job-1"]
    assert 0 < left <= TTL
    assert subject.pttl(key(subject)) == NO_KEY
    assert claim(subject, "job-2") == [GRANTED, 0]


def test_claim_checks_the_cooldown_on_request(subject: Subject) -> None:
    """The reply has the job that has succeeded and the time left."""
    cool_down(subject, "job-1")

    status, value, left = claim(subject, "job-2", at="cooldown")

    expected = f"job-1\n0\n{holder_info('job-1', 'succeeded')}"
    assert (status, value.decode()) == (TAKEN, expected)
    assert 0 < left <= TTL
    assert claim(subject, "job-2", at="lock") == [GRANTED, 0]


def test_claim_ignores_lock_and_cooldown_of_the_same_job(subject: Subject) -> None:
    """A job that retries has a lock, and may have succeeded before."""
    lock(subject, "job-1")
    cool_down(subject, "job-1")

    assert claim(subject, "job-1", at="lock cooldown") == [GRANTED, 0]


@pytest.mark.parametrize(
    "value", ["theirs", "", "a\nb\nc", "base.attempt\n7\n\n\nhost"]
)
def test_claim_ignores_a_lock_without_a_job(subject: Subject, value: str) -> None:
    """A lock outside of a task, or of another program, is no job of the call."""
    subject.set(key(subject, "lock"), value, px=TTL)

    assert claim(subject, "job-1", at="lock") == [GRANTED, 0]


def test_claim_names_the_queued_job_before_the_running_one(subject: Subject) -> None:
    """All nodes name the same job, if one is queued and another runs."""
    claim(subject, "queued")
    lock(subject, "running")
    cool_down(subject, "done")

    assert claim(subject, "new", at="lock cooldown")[1].startswith(b"queued\n")
    release(subject, "queued")
    assert claim(subject, "new", at="lock cooldown")[1].startswith(b"running\n")
    subject.delete(key(subject, "lock"))
    assert claim(subject, "new", at="lock cooldown")[1].startswith(b"done\n")


# -- KEEP_CLAIM and RELEASE_CLAIM ----------------------------------------------


def test_keep_renews_a_claim(subject: Subject) -> None:
    """The claim gets a long ttl once the job is in the queue."""
    claim(subject, "job-1", ttl_ms=SHORT)

    assert keep(subject, "job-1") == [GRANTED, 0]
    assert subject.pttl(key(subject)) > SHORT


def test_keep_never_creates_a_claim(subject: Subject) -> None:
    """A job that has started meanwhile has released it."""
    assert keep(subject, "job-1") == [FREE]

    claim(subject, "job-2", ttl_ms=SHORT)

    assert keep(subject, "job-1") == keep(subject, "job") == [FREE]
    assert subject.pttl(key(subject)) <= SHORT


def test_release_is_for_its_own_job(subject: Subject) -> None:
    """The claim of another job stays, and twice is harmless."""
    claim(subject, "job-1")

    assert release(subject, "job") == release(subject, "job-12") == [FREE]
    assert claim(subject, "job-2")[0] == TAKEN
    assert release(subject, "job-1") == [GRANTED, 0]
    assert release(subject, "job-1") == [FREE]
    assert subject.pttl(key(subject)) == NO_KEY


# -- COOL_DOWN -----------------------------------------------------------------


def test_cool_down_is_of_the_last_success(subject: Subject) -> None:
    """Each success starts it anew."""
    cool_down(subject, "job-1", SHORT)

    assert cool_down(subject, "job-2") == [GRANTED, 0]
    assert claim(subject, "job-3", at="cooldown")[1].startswith(b"job-2\n")
    assert subject.pttl(key(subject, "cooldown")) > SHORT


def test_cool_down_expires(subject: Subject) -> None:
    """After its ttl the call may be claimed again."""
    cool_down(subject, "job-1", SHORT)

    subject.wait_until(lambda: claim(subject, "job-2", at="cooldown") == [GRANTED, 0])
