"""Random sequences of calls: the node in memory replies as real servers do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_redlock.core import scripts
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.scripts import GRANTED, QUARANTINED, TAKEN
from celery_redlock.core.transport.resp import ErrorReply
from tests.contract.subjects import (
    CLOSED,
    CONFIG,
    EXACT,
    NEW,
    UNGUARDED,
    MemorySubject,
)

if TYPE_CHECKING:
    from tests.contract.subjects import ServerSubject, Subject

Call = tuple[str, dict[str, Any]]

APART = 5000  # ms by which two ttls may differ that were set one after the other
HOUR = 3_600_000_000  # µs
FLOOR = 1000  # replaces a floor that was read from a clock
QUEUE_TTL = 25_000  # ms
KEYS = ("lock", "meta", "wait_queue", "record")

tokens = st.sampled_from(["a.1", "a.2", "b.1"])
configs = st.sampled_from([CONFIG, CONFIG, UNGUARDED, CLOSED, NEW])
stripes = st.sampled_from(["7", "8"])
counters = st.integers(1, 20) | st.sampled_from([EXACT - 1, EXACT, EXACT + 2])
ttls = st.sampled_from([20_000, 30_000])
names = st.sampled_from(["lock", "meta"])
waiters = st.sampled_from(["w/1", "w/2", "x/1"])
pairs = st.lists(st.tuples(st.sampled_from(["7", "8", "floor"]), counters), max_size=3)
jobs = st.sampled_from(["", "job", "job-1", "job.1"])
infos = st.sampled_from(["", "t\njob", "t\njob-1\nhost", "t\n\nhost"])
flags = st.sampled_from(["", "0", "1"])
entries = st.tuples(
    *(jobs, st.integers(1, 3), st.sampled_from(["latest", "first"])),
    *(st.just("0.000"), ttls, flags),
)


def call(name: str, /, **named: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    """Return calls of this name with arguments like these."""
    return st.tuples(st.just(name), st.fixed_dictionaries(named))


def record(name: str, *args: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    """Return runs of this script on one key, with ARGV like these."""
    return call("run_on_record", name=st.just(name), args=st.tuples(*args))


calls = [
    call(
        "acquire",
        token=tokens,
        holder_info=st.sampled_from(["", "f\n1", "naïve"]),
        ttl_ms=ttls,
        stripe=stripes,
        hint_us=st.sampled_from([-HOUR, -1_000_000, 0, 1_000_000, HOUR]),
        config=configs,
        quarantine_ms=st.sampled_from([0, 30_000]),
    ),
    call(
        "extend",
        token=tokens,
        ttl_ms=ttls,
        config=configs,
        quarantine_ms=st.just(30_000),
    ),
    call("restore", token=tokens, ttl_ms=ttls, fence=counters, config=configs),
    call("raise_fence", token=tokens, fence=counters),
    call(
        "release",
        token=tokens | st.sampled_from(["a.", "b.", ""]),
        keep_ms=st.sampled_from([0, 9000]),
    ),
    call("inspect"),
    call("request_cancel", token=tokens, who=st.sampled_from(["", "t[1]"])),
    call(
        "join_wait_queue",
        waiter=waiters,
        rank=st.integers(1, 3),
        ttl_ms=st.just(QUEUE_TTL),
    ),
    call("leave_wait_queue", waiter=waiters, free_in_ms=st.sampled_from(["", "0"])),
    call("counters", config=configs),
    call(
        "sync",
        read_for=st.sampled_from(["present", "", "another"]),
        pairs=pairs,
        set_floor=st.sampled_from([0, 1]),
        config=configs,
    ),
    call("initialize", config=st.sampled_from([CONFIG, UNGUARDED, NEW])),
    call("close", quarantine_ms=ttls),
    call("open", pairs=pairs),
]
records = [
    record("CLAIM", jobs, infos, ttls, flags, flags),
    record("KEEP_CLAIM", jobs, ttls),
    record("RELEASE_CLAIM", jobs),
    record("COOL_DOWN", jobs, infos, ttls),
    entries.map(
        lambda args: ("run_on_record", {"name": "START_SUCCESSOR", "args": args})
    ),
    st.tuples(entries, jobs).map(
        lambda drawn: (
            "run_on_record",
            {"name": "ENTER_SUCCESSOR", "args": (*drawn[0], drawn[1])},
        )
    ),
    record("WITHDRAW_SUCCESSOR", jobs),
    record("MARK_SLOT", jobs, ttls),
]
changes = [
    call("forget", name=names),
    call("retype", name=names),
    call(
        "put",
        name=st.sampled_from(["lock", "meta"]),
        value=st.sampled_from(["", "a.1", "a.1\n12x\n5", "a.1\n\n3", "c.1\n7", "\xff"]),
        px=st.sampled_from([None, 25_000]),
    ),
    call(
        "count",
        field=stripes,
        value=counters | st.sampled_from(["", "x", "3.0", "1e3"]),
    ),
    call("seem_restarted"),
    call("flush"),
]
sequences = st.lists(
    st.one_of(*calls, *calls, *changes) | st.one_of(*records), min_size=1, max_size=25
)


def key_of(subject: Subject, name: str) -> str:
    """Return the key of this name."""
    return subject.key("record") if name == "record" else str(getattr(subject, name))


# -- what other programs do to the keys ------------------------------------------


def forget(subject: Subject, name: str) -> None:
    """Delete a key."""
    subject.delete(key_of(subject, name))


def put(subject: Subject, name: str, value: str, px: int | None) -> None:
    """Write a string, over any type."""
    subject.set(key_of(subject, name), value, px)


def retype(subject: Subject, name: str) -> None:
    """Replace a key by one of another type."""
    forget(subject, name)
    if name == "lock":
        subject.hset(key_of(subject, name), "field", "theirs")
    else:
        put(subject, name, "theirs", None)


def count(subject: Subject, field: str, value: Any) -> None:
    """Write a fence counter, unless the key has another type."""
    if isinstance(subject.read(subject.meta), dict | None):
        subject.hset(subject.meta, field, value)


def seem_restarted(subject: Subject) -> None:
    """Write the run id of another process, unless the key has another type."""
    if isinstance(subject.read(subject.meta), dict | None):
        subject.hset(subject.meta, "run_id", "an earlier process")


def run_on_record(subject: Subject, name: str, args: tuple[Any, ...]) -> Any:
    """Run a script whose KEYS are one record, and the lock and another record."""
    keys = [subject.key("record"), subject.lock, subject.key("cooldown")]
    number = 3 if name == "CLAIM" else 1
    if name == "COOL_DOWN":
        keys = keys[2:]
    return subject.run(getattr(scripts, name), keys[:number], args)


OWN = {
    function.__name__: function
    for function in (forget, put, retype, count, seem_restarted, run_on_record)
}


# -- the comparison --------------------------------------------------------------


def incarnation_of(subject: Subject, name: str) -> bytes:
    """Return the incarnation of the node if this is "present", else the name."""
    meta = subject.read(subject.meta)
    present = meta.get(b"incarnation", b"") if isinstance(meta, dict) else b""
    return present if name == "present" else name.encode()


def perform(subject: Subject, name: str, named: dict[str, Any], now_us: int) -> Any:
    """Run one call of a sequence and return its reply, if it has one."""
    named = dict(named)
    if name in OWN:
        return OWN[name](subject, **named)
    items = [item for pair in named.pop("pairs", ()) for item in pair]
    if name == "acquire":
        named["hint_us"] += now_us
    if name == "sync":
        items.insert(0, incarnation_of(subject, named.pop("read_for")))
    return getattr(subject, name)(*items, **named)


def plain(subject: Subject, name: str, reply: Any) -> tuple[Any, int]:
    """Return a reply without the parts that must differ, and its ttl."""
    if isinstance(reply, ErrorReply):
        return ("WRONGTYPE" if "WRONGTYPE" in str(reply) else str(reply)), 0
    if not isinstance(reply, list):
        return reply, 0
    reply = ["this process" if item == subject.run_id else item for item in reply]
    if name == "counters" and reply[0] == GRANTED:
        return dict(zip(reply[1::2], reply[2::2], strict=True)), 0
    if reply[0] in (TAKEN, QUARANTINED):
        return reply[:-1], reply[-1]
    return reply, 0


def is_about(ttl: int, other: int) -> bool:
    """Tell whether two ttls are the same, within the time between two calls."""
    return ttl == other if min(ttl, other) <= 0 else abs(ttl - other) < APART


def replace_floor(subject: Subject) -> int:
    """Return the floor, and replace it by one that every node has."""
    fields = subject.read(subject.meta)
    floor = int(fields.get(b"floor", 0)) if isinstance(fields, dict) else 0
    count(subject, "floor", FLOOR)
    return floor


def contents(subject: Subject) -> dict[str, Any]:
    """Return all keys, without the run id, in which nodes differ."""
    found: dict[str, Any] = {
        name: subject.read(key_of(subject, name))
        for name in KEYS
        if "queue" not in name
    }
    if isinstance(found["meta"], dict):
        found["meta"] = {
            field: "this process" if value == subject.run_id else value
            for field, value in found["meta"].items()
            if field != b"quarantine_until"  # it is read from a clock
        }
        found["is_quarantined"] = subject.is_quarantined
    return {**found, "wait_queue": subject.waiters()}


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(sequence=sequences)
def test_memory_replies_as_a_server_does(
    server: ServerSubject, sequence: list[Call]
) -> None:
    """After any sequence of calls: the same replies, and the same keys in the end."""
    both = MemorySubject(SYSTEM_CLOCK), server.anew()
    now_us = round(SYSTEM_CLOCK.wall() * 1e6)

    for name, named in sequence:
        fake, real = (
            plain(subject, name, perform(subject, name, named, now_us))
            for subject in both
        )
        assert fake[0] == real[0], name
        assert is_about(fake[1], real[1]), name
        if name in ("initialize", "sync"):
            floors = [replace_floor(subject) for subject in both]
            assert abs(floors[0] - floors[1]) < APART * 1000

    assert contents(both[0]) == contents(both[1])
    for name in KEYS:
        left = [subject.pttl(key_of(subject, name)) for subject in both]
        assert is_about(*left), name
