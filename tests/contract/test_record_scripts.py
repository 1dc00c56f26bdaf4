"""The scripts of the records beside locks, reply by reply.

Claims and cool-downs of calls, the successor register, and what schedulers record: the
slots that were sent, and the standbys.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from celery_redlock.scripts import (
    CLAIM,
    COOL_DOWN,
    ENTER_SUCCESSOR,
    FREE,
    GRANTED,
    KEEP_CLAIM,
    LIST_STANDBYS,
    MARK_SLOT,
    NOTE_PUBLISHED,
    QUARANTINED,
    READ_SLOTS,
    RECORD_SLOTS,
    RECORD_STANDBY,
    RELEASE_CLAIM,
    START_SUCCESSOR,
    TAKEN,
    UNSYNCED,
    WITHDRAW_SUCCESSOR,
)
from tests.contract.subjects import CONFIG, NO_KEY, SHORT, TTL, Subject

KINDS = ("claim", "lock", "cooldown")
NOW = 1_795_246_614_184_112  # µs since 1970
BOTH_ORDERS = pytest.mark.parametrize("keep", ["latest", "first"])


def key(subject: Subject, kind: str = "claim") -> str:
    """Return the key of a record about the call or schedule ``c``."""
    return subject.key(f"{kind}:c")


def register(subject: Subject) -> list[str]:
    """Return the keys of the successor register."""
    return [key(subject, "next"), key(subject, "order")]


# -- Claims and cool-downs -----------------------------------------------------


def holder_info(job: str, phase: str = "queued") -> str:
    """Return the text that is stored with a job."""
    return f"send_invoice\n{job}\nhost\n4711\n1.5\n{phase}"


def claim(  # noqa: PLR0913  (keyword-only, one for each argument of the script)
    subject: Subject,
    job: str,
    *,
    at: str = "",
    ttl_ms: int = TTL,
    together: str = "",
    follows: str = "0",
) -> Any:
    """Run CLAIM, on a node that votes; ``at`` names which other keys it checks."""
    keys = [*(key(subject, kind) for kind in KINDS), subject.meta]
    checks = [int(kind in at) for kind in KINDS[1:]]
    args = [subject.admit(), job, holder_info(job), ttl_ms, *checks, together, follows]
    return subject.run(CLAIM, keys, args)


def keep(subject: Subject, job: str, ttl_ms: int = TTL) -> Any:
    """Run KEEP_CLAIM, on a node that votes."""
    args = [subject.admit(), job, ttl_ms]
    return subject.run(KEEP_CLAIM, [key(subject), subject.meta], args)


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


def test_claim_is_for_the_first(subject: Subject) -> None:
    """The reply to a second job has the first one, its holder_info and its ttl."""
    assert claim(subject, "job-1") == [GRANTED, 0]

    status, value, left = claim(subject, "job-2")

    assert (status, value.decode()) == (TAKEN, f"job-1\n0\n{holder_info('job-1')}")
    assert 0 < left <= subject.longest(TTL)


@pytest.mark.parametrize("job", ["job-1", "job", "job-12", "-", "%d", "a.b*c"])
def test_claim_compares_whole_job_names(subject: Subject, job: str) -> None:
    """Neither a part of a name nor a pattern matches another job."""
    claim(subject, job)

    assert claim(subject, "job-1x")[0] == TAKEN
    assert claim(subject, job)[0] == GRANTED


@pytest.mark.parametrize(
    ("task", "is_released"),
    [("", True), ("send_invoice", True), ("send", False), ("no.such", False)],
)
def test_claim_is_released_for_its_own_task_alone(
    subject: Subject, task: str, *, is_released: bool
) -> None:
    """A message of another task cannot name the claim of a job, and release it."""
    claim(subject, "job-1")

    reply = subject.run(RELEASE_CLAIM, [key(subject)], ["job-1", task])

    assert reply == ([GRANTED, 0] if is_released else [FREE])
    assert (subject.pttl(key(subject)) == NO_KEY) is is_released


@pytest.mark.parametrize(
    ("claimed_for", "released_for", "is_released"),
    [
        *(("0", "0", True), ("0", "run-1", True), ("run-1", "run-1", True)),
        *(("run-1", "0", False), ("run-2", "run-1", False), ("run-1", "", True)),
    ],
)
def test_claim_is_released_for_its_own_run_alone(
    subject: Subject, claimed_for: str, released_for: str, *, is_released: bool
) -> None:
    """A release that comes late leaves the claim that a retry has taken meanwhile."""
    claim(subject, "job-1", follows="0")
    claim(subject, "job-1", follows=claimed_for)

    reply = subject.run(RELEASE_CLAIM, [key(subject)], ["job-1", "", released_for])

    assert reply == ([GRANTED, 0] if is_released else [FREE])


def test_claim_checks_the_lock_on_request(subject: Subject) -> None:
    """The value of the running job begins with its id, as that of a claim does."""
    lock(subject, "job-1")

    status, value, left = claim(subject, "job-2", at="lock")

    assert status == TAKEN
    assert value.split(b"\n")[:4] == [b"job-1", b"7", b"send_invoice", b"job-1"]
    assert 0 < left <= subject.longest(TTL)
    assert subject.pttl(key(subject)) == NO_KEY
    assert claim(subject, "job-2") == [GRANTED, 0]


@pytest.mark.parametrize("job", ["key 1", "cancelled by x"])
def test_claim_takes_no_name_of_a_job_for_a_key(subject: Subject, job: str) -> None:
    """The keys of a lock are named after the seven lines about its holder."""
    lock(subject, job)

    assert claim(subject, "job-2", at="lock")[0] == TAKEN


@pytest.mark.parametrize("published", ["", "\n1790000000000000"])
def test_claim_compares_the_keys_that_were_taken_together(
    subject: Subject, published: str
) -> None:
    """A running job of the same call has exactly these keys."""
    text = f"base.attempt\n7\ntask\njob-1\nhost\n4711\n1.5{published}"
    together = "key a\nkey b"
    subject.set(key(subject, "lock"), f"{text}\n{together}\ncancelled x", px=TTL)

    assert claim(subject, "job-2", at="lock", together=together)[0] == TAKEN
    assert claim(subject, "job-2", at="lock", together="key a\nkey c")[0] == GRANTED
    assert claim(subject, "job-2", at="lock")[0] == GRANTED


def test_claim_takes_no_line_about_the_holder_for_a_key(subject: Subject) -> None:
    """There are seven of them, and a name in them may have any words."""
    text = "base.attempt\n7\na task of many words here\nkey a\nhost\n4711\n1.5"
    subject.set(key(subject, "lock"), f"{text}\nkey b", px=TTL)

    taken = claim(subject, "job-2", at="lock", together="key b")

    assert taken[:1] == [TAKEN]
    assert taken[1].split(b"\n")[0] == b"key a"


def test_claim_checks_the_cooldown_on_request(subject: Subject) -> None:
    """The reply has the job that has succeeded and the time left."""
    cool_down(subject, "job-1")

    status, value, left = claim(subject, "job-2", at="cooldown")

    expected = f"job-1\n0\n{holder_info('job-1', 'succeeded')}"
    assert (status, value.decode()) == (TAKEN, expected)
    assert 0 < left <= subject.longest(TTL)
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


def test_keep_renews_a_claim(subject: Subject) -> None:
    """The claim gets a long ttl once the job is in the queue."""
    claim(subject, "job-1", ttl_ms=SHORT * 100)

    assert keep(subject, "job-1") == [GRANTED, 0]
    assert subject.pttl(key(subject)) > SHORT * 100


def test_keep_never_creates_a_claim(subject: Subject) -> None:
    """A job that has started meanwhile has released it."""
    assert keep(subject, "job-1") == [FREE]

    claim(subject, "job-2", ttl_ms=SHORT)

    assert keep(subject, "job-1") == keep(subject, "job") == [FREE]
    assert subject.pttl(key(subject)) <= subject.longest(SHORT)


def test_release_is_for_its_own_job(subject: Subject) -> None:
    """The claim of another job stays, and twice is harmless."""
    claim(subject, "job-1")

    assert release(subject, "job") == release(subject, "job-12") == [FREE]
    assert claim(subject, "job-2")[0] == TAKEN
    assert release(subject, "job-1") == [GRANTED, 0]
    assert release(subject, "job-1") == [FREE]
    assert subject.pttl(key(subject)) == NO_KEY


def test_cool_down_is_of_the_last_success(subject: Subject) -> None:
    """Each success starts it anew."""
    cool_down(subject, "job-1", SHORT)

    assert cool_down(subject, "job-2") == [GRANTED, 0]
    assert claim(subject, "job-3", at="cooldown")[1].startswith(b"job-2\n")
    assert subject.pttl(key(subject, "cooldown")) > SHORT


# -- The successor register ----------------------------------------------------


def enter(  # noqa: PLR0913  (by name)
    subject: Subject,
    task_id: str,
    published: int,
    keep: str = "latest",
    *,
    ttl_ms: int = TTL,
    entered: bool = False,
    holder: str = "",
) -> str | None:
    """Run ENTER_SUCCESSOR; return None, or the call that comes before."""
    args = [task_id, published, keep, "0.000", ttl_ms, "1" if entered else "", holder]
    return _preceding(subject, subject.run(ENTER_SUCCESSOR, register(subject), args))


def start(
    subject: Subject,
    task_id: str,
    published: int,
    keep: str = "latest",
    *,
    entered: bool = True,
) -> str | None:
    """Run START_SUCCESSOR; return None, or the call that comes before."""
    args = [task_id, published, keep, "0.000", TTL, "1" if entered else ""]
    return _preceding(subject, subject.run(START_SUCCESSOR, register(subject), args))


def withdraw(subject: Subject, task_id: str) -> Any:
    """Run WITHDRAW_SUCCESSOR."""
    return subject.run(WITHDRAW_SUCCESSOR, register(subject), [task_id])


def _preceding(subject: Subject, reply: Any) -> str | None:
    if reply == [GRANTED, 0]:
        return None
    status, value, left = reply
    assert (status, 0 <= left <= subject.longest(TTL)) == (TAKEN, True)
    return str(value.split(b"\n")[0].decode())


def test_enter_writes_the_whole_entry(subject: Subject) -> None:
    """The entry is the id, when it was published, when it expires, and "waits"."""
    args = ["one", NOW, "latest", "1795246615.500", TTL, "", ""]

    assert subject.run(ENTER_SUCCESSOR, register(subject), args) == [GRANTED, 0]

    entry = b"one\n%d\n1795246615.500\nwaits" % NOW
    assert subject.get(key(subject, "next")) == entry
    assert 0 < subject.pttl(key(subject, "next")) <= subject.longest(TTL)


@pytest.mark.parametrize(
    ("keep", "replies", "last"),
    [("latest", [None, None, "c", "c"], "c"), ("first", [None, "b", None, "a"], "a")],
)
def test_register_only_moves_on(
    subject: Subject, keep: str, replies: list[str | None], last: str
) -> None:
    """To the call that was published later, or earlier, by one microsecond."""
    calls = [("b", NOW), ("c", NOW + 1), ("a", NOW - 1), ("b", NOW)]

    assert [enter(subject, *call, keep) for call in calls] == replies
    entry = subject.get(key(subject, "next")) or b""
    assert entry.startswith(f"{last}\n".encode())


@BOTH_ORDERS
def test_calls_of_one_instant_are_ordered_by_id(subject: Subject, keep: str) -> None:
    """All nodes put the same one of them first."""
    first, second = ("b", "a") if keep == "latest" else ("a", "b")
    enter(subject, second, NOW, keep)

    assert enter(subject, first, NOW, keep) is None
    assert enter(subject, second, NOW, keep) == first


def test_running_call_does_not_precede_a_new_one(subject: Subject) -> None:
    """The holder counts as running, even if the register has it as waiting."""
    enter(subject, "b", NOW)

    assert enter(subject, "a", NOW - 1, holder="b") is None


def test_running_call_precedes_those_entered_before(subject: Subject) -> None:
    """They have been superseded: the holder runs for them as well."""
    enter(subject, "a", NOW - 1)
    enter(subject, "b", NOW)

    assert enter(subject, "a", NOW - 1, entered=True, holder="b") == "b"


@pytest.mark.parametrize("value", ["", "a", "a\nb\nc\nwaits", "a\n1\n0\n"])
def test_register_with_another_text_is_empty(subject: Subject, value: str) -> None:
    """A value that is no entry precedes no call."""
    subject.set(key(subject, "next"), value)

    assert enter(subject, "b", NOW) is None


def test_start_is_for_the_registered_call(subject: Subject) -> None:
    """Another call that got the lock first learns which call comes before it."""
    enter(subject, "a", NOW - 1)
    enter(subject, "b", NOW)

    assert start(subject, "a", NOW - 1) == "b"
    assert start(subject, "b", NOW) is None


@BOTH_ORDERS
def test_started_call_precedes_earlier_entries_only(
    subject: Subject, keep: str
) -> None:
    """A call that was entered before ends; a call that comes later is entered."""
    late, early = (NOW + 1, NOW - 1) if keep == "first" else (NOW - 1, NOW + 1)
    enter(subject, "before", late, keep)
    enter(subject, "runs", NOW, keep)
    assert start(subject, "runs", NOW, keep) is None

    assert enter(subject, "before", late, keep, entered=True) == "runs"
    assert start(subject, "before", late, keep) == "runs"
    assert enter(subject, "after", late, keep) is None
    assert enter(subject, "better", early, keep) is None


def test_start_without_an_entry_is_granted(subject: Subject) -> None:
    """A node that has no register, or has forgotten it, stops no call."""
    assert start(subject, "a", NOW) is None

    entry = subject.get(key(subject, "next")) or b""
    lines, _, started = entry.rpartition(b"\n")
    assert lines == b"a\n%d\n0.000\nruns" % NOW
    assert int(started) >= NOW


def test_start_does_not_replace_a_later_call(subject: Subject) -> None:
    """A call that waits and comes before stays registered."""
    enter(subject, "b", NOW + 1)

    assert start(subject, "a", NOW, entered=False) == "b"
    assert enter(subject, "c", NOW) == "b"


def test_withdraw_is_for_its_own_call(subject: Subject) -> None:
    """The entry of another call stays, and twice is harmless."""
    enter(subject, "b", NOW)

    assert withdraw(subject, "a") == [FREE]
    assert withdraw(subject, "b") == [GRANTED, 0]
    assert withdraw(subject, "b") == [FREE]
    assert subject.pttl(key(subject, "next")) == NO_KEY


def test_withdraw_compares_whole_ids(subject: Subject) -> None:
    """One id may be the start of another one, and may have any characters."""
    enter(subject, "a.b+c%", NOW)

    assert withdraw(subject, "a.b") == [FREE]
    assert withdraw(subject, "a.b+c%") == [GRANTED, 0]


# -- The calls that were published ---------------------------------------------


def note(
    subject: Subject,
    task_id: str,
    expires: str = "0.000",
    ttl_ms: int = TTL,
    who: str = "",
) -> int:
    """Run NOTE_PUBLISHED; return the number of the call."""
    keys = [*register(subject), key(subject, "lock")]
    status, number = subject.run(NOTE_PUBLISHED, keys, [task_id, expires, ttl_ms, who])
    assert status == GRANTED
    return int(number)


def test_each_call_gets_a_number_above_those_before(subject: Subject) -> None:
    """The node numbers the calls; the clocks of their publishers do not count."""
    numbers = [note(subject, task_id) for task_id in ("c", "a", "b")]

    assert numbers == sorted(set(numbers))
    assert numbers[0] > 10**15
    assert 0 < subject.pttl(key(subject, "order")) <= subject.longest(TTL)
    assert note(subject, "a") == 0  # told twice


def test_number_is_above_that_of_a_call_with_a_wrong_clock(subject: Subject) -> None:
    """A call that was sent by name brings the time of another machine."""
    future = 2 * NOW
    start(subject, "by-name", future)

    assert note(subject, "later") > future


def test_call_gives_way_to_a_later_one(subject: Subject) -> None:
    """Also where the lock is free, and against the times that the two brought."""
    note(subject, "old")
    note(subject, "new")

    assert start(subject, "old", NOW + 9, entered=False) == "new"
    assert subject.waiters(key(subject, "order"))[0] == b"ended old"
    assert start(subject, "new", NOW, entered=False) is None


def test_call_that_has_given_way_ends_no_other(subject: Subject) -> None:
    """The one that it gave way to may be killed, and come back."""
    note(subject, "old")
    note(subject, "new")
    assert start(subject, "new", NOW, entered=False) is None
    note(subject, "later")
    assert start(subject, "old", NOW, entered=False) == "later"
    withdraw(subject, "later")

    assert start(subject, "new", NOW, entered=False) is None


def test_later_call_gives_way_with_first(subject: Subject) -> None:
    """The first runs, and for all that were published before it began."""
    note(subject, "one")
    note(subject, "two")
    assert start(subject, "one", NOW, "first", entered=False) is None
    note(subject, "three")

    assert start(subject, "two", NOW, "first", entered=False) == "one"
    assert enter(subject, "three", NOW, "first", holder="one") is None


def test_call_that_runs_precedes_those_published_before(subject: Subject) -> None:
    """They need not have been entered. A call that is published later is entered."""
    note(subject, "old")
    note(subject, "runs")
    assert start(subject, "runs", NOW, entered=False) is None

    note(subject, "new")
    assert enter(subject, "new", NOW - 9, holder="runs") is None
    assert start(subject, "old", NOW + 9, entered=False) == "new"


def test_call_that_has_run_precedes_those_published_before(subject: Subject) -> None:
    """Its body began when they had been published."""
    note(subject, "old")
    note(subject, "runs")
    assert start(subject, "runs", NOW, entered=False) is None

    assert start(subject, "old", NOW + 9, entered=False) == "runs"


@pytest.mark.parametrize("end", ["start", "withdraw"])
def test_call_that_has_ended_is_not_noted_any_more(subject: Subject, end: str) -> None:
    """Its publisher's word may come late: it supersedes no call."""
    note(subject, "old")
    if end == "start":
        withdraw(subject, "old")
        assert start(subject, "quick", NOW, entered=False) is None
        start(subject, "other", NOW + 1, entered=False)
    else:
        withdraw(subject, "quick")
        withdraw(subject, "old")

    assert note(subject, "quick") == 0
    assert start(subject, "late", 1, entered=False) is None


def test_old_call_that_has_given_way_is_not_noted_any_more(subject: Subject) -> None:
    """It is the moment when it ended that counts, and not when it was published."""
    assert enter(subject, "other", NOW) is None
    assert start(subject, "old", 1, entered=False) == "other"

    assert note(subject, "old") == 0
    assert start(subject, "other", NOW) is None


def test_node_forgets_calls_that_have_ended(subject: Subject) -> None:
    """It remembers them for a minute, and calls that wait for their ttl."""
    note(subject, "a", ttl_ms=120_000)
    assert subject.pttl(key(subject, "order")) > 60_000

    start(subject, "a", NOW)

    assert 0 < subject.pttl(key(subject, "order")) <= subject.longest(60_000)


def _is_over(subject: Subject, instant: int) -> bool:
    return subject.now_us > instant


def test_call_is_as_new_as_its_first_start(subject: Subject) -> None:
    """Its end, and a start after a redelivery, change nothing of that."""
    for task_id in ("one", "two"):
        note(subject, task_id)
        assert start(subject, task_id, NOW, entered=False) is None
        instant = subject.now_us
        subject.wait_until(partial(_is_over, subject, instant))
    later_ones_first = [b"two", b"one"]
    assert subject.waiters(key(subject, "order")) == later_ones_first

    withdraw(subject, "one")

    assert subject.waiters(key(subject, "order")) == later_ones_first


def test_node_forgets_calls_that_ended_a_minute_ago(subject: Subject) -> None:
    """As soon as another one ends, while others are noted."""
    now = note(subject, "waits")
    subject.zadd(key(subject, "order"), "long ago", -(now - 61_000_000))
    subject.zadd(key(subject, "order"), "lately", -(now - 30_000_000))

    withdraw(subject, "another")

    assert published(subject) == {b"waits", b"lately", b"another"}


def test_call_that_runs_has_started_after_all_that_were_published(
    subject: Subject,
) -> None:
    """By the clock of the node, or by their numbers, whichever is greater."""
    now = note(subject, "other")
    withdraw(subject, "other")
    assert start(subject, "late", 1, entered=False) is None
    assert started(subject) >= now
    withdraw(subject, "late")
    assert start(subject, "of a wrong clock", 2 * NOW, entered=False) is None

    assert started(subject) == 2 * NOW


def started(subject: Subject) -> int:
    """Return when the call in the register has started, for the order of calls."""
    return int((subject.get(key(subject, "next")) or b"").split(b"\n")[-1])


def test_number_is_above_all_that_are_noted_beside_a_register(subject: Subject) -> None:
    """The call in the register may be older than others that are noted."""
    assert start(subject, "runs", 5, entered=False) is None
    subject.zadd(key(subject, "order"), "of a wrong clock", 2 * NOW)

    assert note(subject, "later") > 2 * NOW


def test_published_call_asks_the_running_one_to_end(subject: Subject) -> None:
    """The request is stored with the lock of another call, and never of its own."""
    lock = key(subject, "lock")
    subject.set(lock, "token\n1\nproj f\nold\nhost\n1\n2.000")

    note(subject, "silent")
    note(subject, "old", who="proj.f[old]")
    assert b"cancelled" not in (subject.get(lock) or b"")
    note(subject, "new", who="proj.f[new]")
    note(subject, "newest", who="proj.f[newest]")

    value = subject.get(lock) or b""
    assert value.endswith(b"2.000\ncancelled proj.f[newest]")


def published(subject: Subject) -> set[bytes]:
    """Return what a node has noted about calls that were published."""
    return set(subject.waiters(key(subject, "order")))


def test_call_that_has_started_does_not_expire_any_more(subject: Subject) -> None:
    """A node keeps the time at which a call expires until then."""
    note(subject, "a", "100.000")
    assert published(subject) == {b"a", b"expires a"}

    start(subject, "a", NOW)

    assert published(subject) == {b"a"}


def test_call_that_expires_never_has_no_end_noted(subject: Subject) -> None:
    """Only calls that expire need the time noted."""
    note(subject, "a", "0.000")
    note(subject, "b", "0.500")

    assert published(subject) == {b"a", b"b", b"expires b"}


def test_node_forgets_calls_that_were_published_long_ago(subject: Subject) -> None:
    """They are lost if they have not arrived by then. Others that are noted stay."""
    note(subject, "old")
    names = (f"new-{number}" for number in itertools.count())

    def is_forgotten() -> bool:
        name = next(names)
        note(subject, name, ttl_ms=SHORT)
        assert name.encode() in published(subject)
        return b"old" not in published(subject)

    subject.wait_until(is_forgotten)


def test_later_publisher_does_not_shorten_the_record(subject: Subject) -> None:
    """The ttl is that of the call that may wait longest."""
    note(subject, "a", ttl_ms=3 * TTL)
    note(subject, "b", ttl_ms=TTL)

    assert subject.pttl(key(subject, "order")) > 2 * TTL


def test_number_is_above_that_of_every_call_that_started(subject: Subject) -> None:
    """A call that starts is as new as all that were published by then."""
    future = 2 * NOW
    note(subject, "a")
    start(subject, "by-name", future)
    first = note(subject, "b")
    start(subject, "b", NOW)
    withdraw(subject, "b")

    assert first == future + 1
    assert note(subject, "c") > NOW


def test_number_is_above_that_of_a_call_that_waits(subject: Subject) -> None:
    """It has not started, so it has one number only."""
    future = 2 * NOW
    enter(subject, "waits", future)

    assert note(subject, "a") == future + 1


def test_call_gives_way_to_the_latest_that_lives_as_long(subject: Subject) -> None:
    """Later ones that expire sooner are passed over; the reply has the whole entry."""
    note(subject, "old", "100.000")
    number = note(subject, "new", "200.500")
    note(subject, "short", "50.000")
    args = ["old", NOW, "latest", "100.000", TTL, ""]

    reply = subject.run(START_SUCCESSOR, register(subject), args)

    assert reply[:2] == [TAKEN, b"new\n%d\n200.5\nwaits" % number]


def test_calls_that_were_published_lately_are_not_forgotten(subject: Subject) -> None:
    """Each may wait for as long as the ttl says, in milliseconds."""
    note(subject, "a")
    before = subject.now_us
    subject.wait_until(lambda: subject.now_us > before + 1000 * SHORT)

    note(subject, "b")

    assert published(subject) == {b"a", b"b"}


def test_id_of_a_call_is_any_line(subject: Subject) -> None:
    """Celery takes any text as the id of a task."""
    assert start(subject, "a b", NOW) is None

    entry = subject.get(key(subject, "next")) or b""
    assert entry.startswith(b"a b\n%d\n0.000\nruns\n" % NOW)


def test_request_to_end_is_not_for_a_lock_without_a_job(subject: Subject) -> None:
    """The value of another program stays as it is."""
    lock = key(subject, "lock")
    subject.set(lock, "of another program, without lines")

    note(subject, "new", who="proj.f[new]")

    assert subject.get(lock) == b"of another program, without lines"


@pytest.mark.parametrize(
    ("mine", "its", "by"),
    [
        ("0.000", "100.000", None),
        ("100.000", "99.900", None),
        ("100.000", "100.000", "new"),
        ("100.000", "0.000", "new"),
    ],
)
def test_published_call_that_expires_precedes_none_that_lives_longer(
    subject: Subject, mine: str, its: str, by: str | None
) -> None:
    """It may never run. One before it that does not expire comes next."""
    note(subject, "old", mine)
    note(subject, "new", its)
    args = ["old", NOW, "latest", mine, TTL, ""]

    reply = subject.run(START_SUCCESSOR, register(subject), args)

    assert _preceding(subject, reply) == by


# -- Slots and standbys of schedulers ------------------------------------------


def record(subject: Subject, *pairs: Any, ttl_ms: int = TTL) -> Any:
    """Run RECORD_SLOTS."""
    return subject.run(RECORD_SLOTS, [key(subject, "slots")], [ttl_ms, *pairs])


def read(subject: Subject, config: str | None = None) -> Any:
    """Run READ_SLOTS; on a node that votes, unless there is a config."""
    config = subject.admit() if config is None else config
    keys = [key(subject, "slots"), subject.meta]
    reply = subject.run(READ_SLOTS, keys, [config])
    if reply[0] == GRANTED:
        return dict(zip(reply[1::2], reply[2::2], strict=True))
    return reply


def test_record_is_read_again(subject: Subject) -> None:
    """Each entry has one instant, to the microsecond."""
    assert read(subject) == {}
    assert record(subject, "a", 1795246614184112, "b", 7) == [GRANTED, 0]

    assert read(subject) == {b"a": b"1795246614184112", b"b": b"7"}


def test_record_only_grows(subject: Subject) -> None:
    """A late record of an earlier leader changes nothing."""
    record(subject, "a", 5, "b", 5)
    record(subject, "a", 4, "b", 6)

    assert read(subject) == {b"a": b"5", b"b": b"6"}


def test_record_without_an_instant_deletes_the_entry(subject: Subject) -> None:
    """An entry that was never there is no error. The last one takes the key along."""
    record(subject, "a", 5, "b", 5)

    assert record(subject, "a", "", "never", "") == [GRANTED, 0]
    assert read(subject) == {b"b": b"5"}
    record(subject, "b", "")
    assert subject.pttl(key(subject, "slots")) == NO_KEY


def test_record_takes_any_name(subject: Subject) -> None:
    """Names of schedule entries are free text."""
    name = "Täglich: 3 Uhr\n(Import)@"

    record(subject, name, 5)

    assert read(subject) == {name.encode(): b"5"}


def test_record_starts_its_ttl_anew(subject: Subject) -> None:
    """The records expire when no scheduler writes any more."""
    record(subject, "a", 5, ttl_ms=SHORT)
    record(subject, "a", 4)
    assert SHORT < subject.pttl(key(subject, "slots")) <= subject.longest(TTL)

    record(subject, "a", 6, ttl_ms=SHORT)
    subject.wait_until(lambda: read(subject) == {})


def test_read_of_a_node_that_may_have_forgotten_is_refused(subject: Subject) -> None:
    """The node may have lost records before its start, until it votes again."""
    record(subject, "a", 5)
    assert read(subject, CONFIG) == [UNSYNCED, b""]

    subject.enter()
    status, left = read(subject, CONFIG)
    assert (status, 0 < left <= 61_000) == (QUARANTINED, True)

    subject.end_quarantine()
    assert read(subject, CONFIG) == [UNSYNCED, subject.identity.encode()]

    subject.sync()
    assert read(subject, CONFIG) == {b"a": b"5"}


def mark(subject: Subject, task_id: str, ttl_ms: int = TTL) -> Any:
    """Run MARK_SLOT."""
    return subject.run(MARK_SLOT, [key(subject, "ran")], [task_id, ttl_ms])


def test_mark_is_for_the_first(subject: Subject) -> None:
    """The reply to a second task has the id of the first one."""
    assert mark(subject, "task-1") == [GRANTED, 0]

    status, first, left = mark(subject, "task-2")

    assert (status, first, 0 < left <= subject.longest(TTL)) == (TAKEN, b"task-1", True)


def test_look_at_a_mark_leaves_none(subject: Subject) -> None:
    """With no ttl the reply alone tells who has marked."""
    assert mark(subject, "task-1", 0) == [GRANTED, 0]
    assert mark(subject, "task-2") == [GRANTED, 0]

    assert mark(subject, "task-1", 0)[:2] == [TAKEN, b"task-2"]


def stand_by(subject: Subject, name: str, ttl_ms: int = TTL) -> Any:
    """Run RECORD_STANDBY."""
    return subject.run(RECORD_STANDBY, [key(subject, "standby")], [name, ttl_ms])


def standbys(subject: Subject) -> set[bytes]:
    """Run LIST_STANDBYS."""
    status, *names = subject.run(LIST_STANDBYS, [key(subject, "standby")], [])
    assert status == GRANTED
    return set(names)


def test_standbys_are_those_that_were_recorded(subject: Subject) -> None:
    """A standby that is recorded twice is listed once."""
    assert standbys(subject) == set()

    assert stand_by(subject, "a") == stand_by(subject, "b") == [GRANTED, 0]
    stand_by(subject, "a")

    assert standbys(subject) == {b"a", b"b"}


def test_standby_can_leave_the_list(subject: Subject) -> None:
    """A standby that was elected, or ends, is removed. The last one deletes the key."""
    stand_by(subject, "a")
    stand_by(subject, "b")

    assert stand_by(subject, "a", 0) == [GRANTED, 0]
    assert standbys(subject) == {b"b"}
    stand_by(subject, "b", 0)
    assert subject.pttl(key(subject, "standby")) == NO_KEY


def test_standby_expires(subject: Subject) -> None:
    """A standby that was killed is not listed for ever, beside one that lives."""
    stand_by(subject, "lives")
    stand_by(subject, "killed", SHORT)
    assert set(subject.hgetall(key(subject, "standby"))) == {b"lives", b"killed"}

    subject.wait_until(lambda: standbys(subject) == {b"lives"})

    assert subject.pttl(key(subject, "standby")) > SHORT
    stand_by(subject, "another")
    assert set(subject.hgetall(key(subject, "standby"))) == {b"lives", b"another"}


# -- All records of jobs -------------------------------------------------------


# How a job writes a record with a ttl. Job 2 was published before job 1.
WRITE: dict[str, Callable[[Subject, int, int], Any]] = {
    "claim": lambda subject, job, ttl: claim(subject, f"job-{job}", ttl_ms=ttl),
    "cooldown": lambda subject, job, ttl: cool_down(subject, f"job-{job}", ttl),
    "next": lambda subject, job, ttl: (
        enter(subject, f"job-{job}", NOW - job, ttl_ms=ttl) or [GRANTED, 0]
    ),
    "ran": lambda subject, job, ttl: mark(subject, f"job-{job}", ttl),
}


@pytest.mark.parametrize("kind", WRITE)
def test_repetition_starts_the_ttl_anew(subject: Subject, kind: str) -> None:
    """A job that was redelivered, or retries, writes its record again."""
    WRITE[kind](subject, 1, SHORT)

    assert WRITE[kind](subject, 1, TTL) == [GRANTED, 0]
    assert subject.pttl(key(subject, kind)) > SHORT


@pytest.mark.parametrize("kind", WRITE)
def test_record_expires(subject: Subject, kind: str) -> None:
    """A job that died does not precede or refuse others for ever."""
    WRITE[kind](subject, 1, SHORT)
    subject.wait_until(lambda: subject.pttl(key(subject, kind)) == NO_KEY)

    assert WRITE[kind](subject, 2, TTL) == [GRANTED, 0]
