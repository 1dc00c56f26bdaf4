"""Random sequences of calls: the node in memory replies as real servers do."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_redlock import scripts
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.resp import ErrorReply
from celery_redlock.scripts import QUARANTINED, TAKEN
from tests.contract.subjects import (
    CONFIG,
    EXACT,
    ME,
    NEW,
    TTL,
    UNGUARDED,
    MemorySubject,
    ServerSubject,
    StoreOfTwo,
    Subject,
    view,
)

Call = tuple[str, dict[str, Any]]

APART = 5000  # ms by which two ttls may differ that were set one after the other
HOUR = 3_600_000_000  # µs
FLOOR = 1000  # replaces a floor that was read from a clock
QUEUE_TTL = 25_000  # ms
KEYS = ("lock", "meta", "wait_queue", "record")

tokens = st.sampled_from(["a.1", "a.2", "b.1"])
FOUNDED = view(epoch="2.aa")
configs = st.sampled_from([CONFIG, CONFIG, CONFIG, UNGUARDED, NEW])
views = st.builds(
    view,
    me=st.sampled_from([f"0.{ME}"] * 3 + [f"1.{ME}", "1.x"]),
    b=st.sampled_from(["0.b1", "0.b1", "1.b1", "1.b2", "2.B2"]),
    epoch=st.sampled_from(["1.aa", "1.aa", "1.ab", "1.aB", "2.aa", "10.a"]),
    kind=st.sampled_from(["founded", "founded", "planned"]),
    deployment=st.sampled_from(["d1", "d1", "d1", "d2"]),
    guard=st.sampled_from(["on", "on", "off"]),
)
any_view = configs | views | st.sampled_from(["", "format 4", f"{CONFIG}, x"])
plans = st.sampled_from([NEW, NEW, FOUNDED, view(b="1.b2", epoch="2.bb")])
waits = st.sampled_from([0, 30_000])
randoms = st.sampled_from(["0f", "1e"])
stripes = st.sampled_from(["7", "8"])
counters = st.integers(1, 20) | st.sampled_from([EXACT - 1, EXACT, EXACT + 2])
ttls = st.sampled_from([20_000, 30_000])
names = st.sampled_from(["lock", "meta"])
waiters = st.sampled_from(["w/1", "w/2", "x/1"])
pairs = st.lists(st.tuples(st.sampled_from(["7", "8", "floor"]), counters), max_size=3)
jobs = st.sampled_from(["", "job", "job-1", "job.1"])
infos = st.sampled_from(["", "t\njob", "t\njob-1\nhost", "t\n\nhost"])
flags = st.sampled_from(["", "0", "1"])
together = st.sampled_from(["", "key a\nkey b"])
limits = st.sampled_from([[("a##", 1, TTL)], [("a##", 2, TTL)], [("a##", 3, TTL)]])
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
        holder_info=st.sampled_from(["", "f\n1", "naïve", "t\nj\nkey a\nkey b"]),
        ttl_ms=ttls,
        stripe=stripes,
        hint_us=st.sampled_from([-HOUR, -1_000_000, 0, 1_000_000, HOUR]),
        config=configs,
    ),
    call("extend", token=tokens, ttl_ms=ttls, config=configs),
    call("restore", token=tokens, ttl_ms=ttls, fence=counters, config=configs),
    call("raise_fence", token=tokens, fence=counters),
    call(
        "release",
        token=tokens | st.sampled_from(["a.", "b.", ""]),
        keep_ms=st.sampled_from([0, 9000]),
    ),
    call("inspect"),
    call("use_keys", keys=st.sampled_from([["a"], ["b"], ["a", "b"], ["a", "b", "c"]])),
    call("request_cancel", token=tokens, who=st.sampled_from(["", "t[1]"])),
    call(
        "join_wait_queue",
        waiter=waiters,
        rank=st.integers(1, 3),
        ttl_ms=st.just(QUEUE_TTL),
    ),
    call(
        "acquire_permits",
        names=st.sampled_from([["a"], ["a##2"], ["a##3"]]),
        limits=limits,
        token=tokens,
        config=configs,
    ),
    call("inspect_permits", limits=limits),
    call(
        "join_permit_queue",
        limits=limits,
        waiter=waiters,
        rank=st.integers(1, 3),
        ttl_ms=st.just(QUEUE_TTL),
    ),
    call(
        "leave_wait_queue",
        waiter=waiters,
        free_in_ms=st.sampled_from(["", "0"]),
        has_permit=st.booleans(),
    ),
]
member_calls = [
    call("vote", config=configs),
    call("join", random=randoms),
    call("join", random=randoms, forget=configs),
    call("note", config=any_view, quarantine_ms=waits),
    call("note", config=views, quarantine_ms=waits),
    call("counters", config=any_view),
    call(
        "sync",
        identity=st.sampled_from([ME, ME, ME, "", "another"]),
        pairs=pairs,
        set_floor=st.sampled_from([0, 1]),
        config=any_view,
    ),
    call("initialize", config=any_view),
    call("close", quarantine_ms=waits, old=configs | views, new=plans),
    call("open", pairs=pairs, new=plans),
    call("abort", new=any_view | plans),
    call("reopen", new=plans),
    call("end_wait"),
]
records = [
    record("CLAIM", any_view, jobs, infos, ttls, flags, flags, together),
    record("CLAIM", configs, jobs, infos, ttls, flags, flags, together),
    record("KEEP_CLAIM", configs, jobs, ttls),
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
    record(
        "JOIN_BACKLOG",
        *(jobs, st.integers(1, 3), st.sampled_from([7_000_000, 30_000_000])),
        st.sampled_from(["", "1"]),
    ),
    record(
        "NUMBER_IN_BACKLOG",
        *(jobs, st.integers(1, 3), st.sampled_from([7_000_000, 30_000_000])),
        st.sampled_from(["", "1"]),
    ),
    record("FIRST_IN_BACKLOG", jobs),
    record("LEAVE_BACKLOG", jobs, st.sampled_from([0, 30_000_000])),
    record("READ_BACKLOG"),
    record("NOTE_RUN", st.integers(1, 1_000_000), st.integers(1, 3), ttls),
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
    call("lose_field", field=st.sampled_from(["config", "replid", "identity"])),
    call("seem_restarted"),
    call("flush"),
]
any_call = st.one_of(*calls, *calls, *member_calls, *changes) | st.one_of(*records)
sequences = st.lists(any_call, min_size=1, max_size=25)
member_sequences = st.lists(
    st.one_of(*member_calls, *member_calls, *member_calls, *changes),
    min_size=5,
    max_size=30,
)
holders = st.sampled_from(["a.1", "b.1"])
# Of holders, while the node's membership changes, by fewer tokens and views.
holder_sequences = st.lists(
    st.one_of(
        call("acquire", token=holders, hint_us=st.just(-HOUR), config=st.just(CONFIG)),
        call("extend", token=holders, config=st.just(CONFIG)),
        call("release", token=holders),
        *(call(name) for name in ("close", "reopen", "open", "end_wait")),
        call("request_cancel", token=holders),
        call("force_release", token=holders),
        call("keep_claim"),
        call("claim", config=st.just(CONFIG)),
        call("join_wait_queue"),
        call("forget", name=st.just("lock")),
    ),
    min_size=5,
    max_size=30,
)
turns = st.lists(st.booleans(), max_size=60)


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
    """Write the name of another memory, unless the key has another type."""
    if isinstance(subject.read(subject.meta), dict | None):
        subject.hset(subject.meta, "replid", "another memory")


def lose_field(subject: Subject, field: str) -> None:
    """Delete one field of what the node knows of itself."""
    if isinstance(subject.read(subject.meta), dict | None):
        subject.hdel(subject.meta, field)


def vote(subject: Subject, config: str) -> None:
    """Let a new node vote."""
    subject.join(random="0f")
    subject.initialize(config)
    count(subject, "floor", FLOOR)


def end_wait(subject: Subject) -> None:
    """End the quarantine, if there is one."""
    meta = subject.read(subject.meta)
    if isinstance(meta, dict) and b"quarantine_until" in meta:
        subject.hset(subject.meta, "quarantine_until", 1)


def use_keys(subject: Subject, keys: list[str]) -> None:
    """Take the locks of these keys from now on, all together."""
    subject.take_several(*keys)


def run_on_record(subject: Subject, name: str, args: tuple[Any, ...]) -> Any:
    """Run a script on one record, and on the other keys that it has."""
    claimed, cooldown = subject.key("record"), subject.key("cooldown")
    keys = {
        "CLAIM": [claimed, subject.lock, cooldown, subject.meta],
        "KEEP_CLAIM": [claimed, subject.meta],
        "COOL_DOWN": [cooldown],
    }
    backlog = [subject.key(part) for part in ("backlog", "return", "pace")]
    keys |= {
        "JOIN_BACKLOG": backlog,
        "NUMBER_IN_BACKLOG": [*backlog[:2], subject.key("number")],
        "FIRST_IN_BACKLOG": backlog[:2],
        "LEAVE_BACKLOG": backlog[:2],
        "READ_BACKLOG": backlog[::2],
        "NOTE_RUN": backlog[2:],
    }
    if name.endswith("_SUCCESSOR"):
        keys[name] = [claimed, subject.key("published")]
    return subject.run(getattr(scripts, name), keys.get(name, [claimed]), args)


OWN = {
    function.__name__: function
    for function in (
        *(forget, put, retype, count, lose_field, vote, end_wait),
        *(seem_restarted, run_on_record, use_keys),
    )
}


# -- the comparison --------------------------------------------------------------


def perform(subject: Subject, name: str, named: dict[str, Any], now_us: int) -> Any:
    """Run one call of a sequence and return its reply, if it has one."""
    named = dict(named)
    if name in OWN:
        return OWN[name](subject, **named)
    items = [item for pair in named.pop("pairs", ()) for item in pair]
    if name == "acquire":
        named["hint_us"] += now_us
    return getattr(subject, name)(*items, **named)


def without_identity(subject: Subject, item: Any) -> Any:
    """Return bytes in which the identity and the name of the memory are replaced."""
    if not isinstance(item, bytes):
        return item
    return item.replace(subject.replid, b"ours").replace(subject.replid[:8], b"ours")


def plain(subject: Subject, name: str, reply: Any) -> tuple[Any, int]:
    """Return a reply without the parts that must differ, and its ttl."""
    if isinstance(reply, ErrorReply):
        return ("WRONGTYPE" if "WRONGTYPE" in str(reply) else str(reply)), 0
    if not isinstance(reply, list):
        return reply, 0
    reply = [without_start(without_identity(subject, item)) for item in reply]
    left = 0
    if reply[0] == TAKEN:  # of several keys: value and ttl of each
        reply[2:-1:2] = [ttl if ttl < 0 else "a ttl" for ttl in reply[2:-1:2]]
    if name == "join_permit_queue":  # of each limit: the ttl of a holder
        reply[2:-1] = [ttl if ttl < 0 else "a ttl" for ttl in reply[2:-1]]
    place = 1 if reply[0] == QUARANTINED else -1
    if reply[0] in (TAKEN, QUARANTINED) and isinstance(reply[place], int):
        left = reply.pop(place)
    if name == "counters":
        head = len(reply) % 2 or 2
        told = dict(zip(reply[head::2], reply[head + 1 :: 2], strict=True))
        for field, number in told.items():
            if field.startswith(b"known:"):
                assert 0 <= int(number) < APART
                told[field] = 0
        return [reply[:head], told], left
    return reply, left


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
    """Return all keys, without the names of process and data, in which nodes differ."""
    found: dict[str, Any] = {
        name: subject.read(key_of(subject, name))
        for name in KEYS
        if "queue" not in name
    }
    if isinstance(found["meta"], dict):
        found["meta"] = {
            field: without_identity(subject, value)
            for field, value in found["meta"].items()
            # Some are read from clocks or are names; a store evicts nothing, and has
            # no start.
            if field not in (b"quarantine_until", b"replid", b"evicted", b"started")
            and not field.startswith(b"known:")
        }
        found["known"] = {
            field
            for field in subject.hgetall(subject.meta)
            if field.startswith(b"known:")
        }
        found["is_quarantined"] = subject.is_quarantined
    if isinstance(found["record"], bytes):
        found["record"] = without_start(found["record"])
    return {**found, "wait_queue": subject.waiters()}


def without_start(value: Any) -> Any:
    """Return an entry without the instants, in us or ms, that it has from the node."""
    return (
        re.sub(rb"\b\d{13}(\d{3})?\b", b"now", value) if type(value) is bytes else value
    )


def compare(server: ServerSubject, sequence: list[Call]) -> None:
    """Make the same calls in memory and on a server, and compare all that they do."""
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


USUAL = settings().max_examples  # of the profile: `make test` has a quick one
many = settings(
    max_examples=3 * USUAL,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
fewer = settings(many, max_examples=USUAL)  # a store takes milliseconds


@many
@given(sequence=sequences)
def test_memory_replies_as_a_server_does(
    server: ServerSubject, sequence: list[Call]
) -> None:
    """After any sequence of calls: the same replies, and the same keys in the end."""
    compare(server, sequence)


@many
@given(sequence=member_sequences)
def test_memory_changes_its_membership_as_a_server_does(
    server: ServerSubject, sequence: list[Call]
) -> None:
    """The same for views that are noted, closed, opened and forgotten in any order."""
    compare(server, sequence)


@pytest.mark.long
@fewer
@given(sequence=sequences, turns=turns)
def test_two_clients_of_a_store_see_one_node(
    store_of_two: StoreOfTwo, sequence: list[Call], turns: list[bool]
) -> None:
    """A client does not use its memory after the other one has changed the keys."""
    store_of_two.turns = iter(turns)
    compare(store_of_two, sequence)


@pytest.mark.long
@fewer
@given(sequence=holder_sequences, turns=turns)
def test_two_clients_of_a_store_see_one_membership(
    store_of_two: StoreOfTwo, sequence: list[Call], turns: list[bool]
) -> None:
    """The same for locks of nodes that are closed, opened and wait meanwhile."""
    store_of_two.turns = iter(turns)
    compare(store_of_two, [("vote", {"config": CONFIG}), *sequence])
