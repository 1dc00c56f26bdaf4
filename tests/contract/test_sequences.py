"""Random sequences of calls: the node in memory answers each as a real server does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.scripts import GRANTED, QUARANTINED, TAKEN
from celery_redlock.core.wire import ErrorReply
from tests.contract.memory_subject import MemorySubject
from tests.contract.subjects import CLOSED, CONFIG, NEW

if TYPE_CHECKING:
    from tests.contract.server_subject import ServerSubject
    from tests.contract.subjects import Subject

Call = tuple[str, dict[str, Any]]

APART = 5000  # ms by which two ttls may differ that were set one after the other
HOUR = 3_600_000_000  # µs
FLOOR = 1000  # what is written over a floor that came from a clock
WHOLE = 2**53
TTL_OF_LINE = 25_000  # ms

tokens = st.sampled_from(["a.1", "a.2", "b.1"])
configs = st.sampled_from(["", CONFIG, CLOSED, NEW])
stripes = st.sampled_from(["7", "8"])
counters = st.integers(1, 20) | st.sampled_from([WHOLE - 1, WHOLE, WHOLE + 2])
ttls = st.sampled_from([20_000, 30_000])
names = st.sampled_from(["lock", "fence", "meta", "quarantine"])
waiters = st.sampled_from(["w/1", "w/2", "x/1"])
pairs = st.lists(st.tuples(st.sampled_from(["7", "8", "floor"]), counters), max_size=3)


def call(name: str, /, **named: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    """Return calls of this method with arguments like these."""
    return st.tuples(st.just(name), st.fixed_dictionaries(named))


scripts = [
    call(
        "acquire",
        token=tokens,
        facts=st.sampled_from(["", "f\n1", "naïve"]),
        ttl_ms=ttls,
        stripe=stripes,
        hint_us=st.sampled_from([-HOUR, -1_000_000, 0, 1_000_000, HOUR]),
        config=configs,
        quarantine_ms=st.just(30_000),
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
    call(
        "line_up", waiter=waiters, rank=st.integers(1, 3), ttl_ms=st.just(TTL_OF_LINE)
    ),
    call("step_out", waiter=waiters, after=st.sampled_from(["", "0"])),
    call("counters", config=st.sampled_from([CONFIG, NEW])),
    call("sync", run_id=st.booleans(), pairs=pairs, floor=st.sampled_from([0, 1])),
    call("initialize", config=st.sampled_from([CONFIG, NEW])),
    call("close", quarantine_ms=ttls),
    call("open", pairs=pairs),
]
meddling = [
    call("forget", name=names),
    call("retype", name=names),
    call(
        "put",
        name=st.sampled_from(["lock", "quarantine", "fence"]),
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
sequences = st.lists(st.one_of(*scripts, *scripts, *meddling), min_size=1, max_size=25)


def perform(subject: Subject, name: str, named: dict[str, Any], now_us: int) -> Any:
    """Do one call of a sequence and return the reply, if it has one."""
    named = dict(named)
    items = [item for pair in named.pop("pairs", ()) for item in pair]
    if name == "acquire":
        named["hint_us"] += now_us
    if name == "sync":
        items.insert(0, subject.run_id if named.pop("run_id") else b"another")
    return getattr(subject, name)(*items, **named)


def plain(subject: Subject, name: str, reply: Any) -> tuple[Any, int]:
    """Return a reply without what must differ, and the ttl that came with it."""
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


def about(ttl: int, other: int) -> bool:
    """Tell whether two ttls are the same, as far as two servers can tell."""
    return ttl == other if min(ttl, other) <= 0 else abs(ttl - other) < APART


def without_clock(subject: Subject) -> int:
    """Return the floor, and write one over it that every node has."""
    fields = subject.read(subject.fence)
    floor = int(fields.get(b"floor", 0)) if isinstance(fields, dict) else 0
    subject.count("floor", FLOOR)
    return floor


def keys_of(subject: Subject) -> dict[str, Any]:
    """Return all keys, in the words that nodes share."""
    keys: dict[str, Any] = subject.dump()
    if isinstance(keys["meta"], dict):
        keys["meta"] = {
            field: "this process" if value == subject.run_id else value
            for field, value in keys["meta"].items()
        }
    return keys


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(sequence=sequences)
def test_memory_answers_as_a_server_does(
    server: ServerSubject, sequence: list[Call]
) -> None:
    """Whatever was called before: the same replies, and the same keys in the end."""
    both = MemorySubject(SYSTEM_CLOCK), server.anew()
    now_us = SYSTEM_CLOCK.wall_us()

    for name, named in sequence:
        fake, real = (
            plain(subject, name, perform(subject, name, named, now_us))
            for subject in both
        )
        assert fake[0] == real[0], name
        assert about(fake[1], real[1]), name
        if name in ("initialize", "sync"):
            floors = [without_clock(subject) for subject in both]
            assert abs(floors[0] - floors[1]) < APART * 1000

    fake_keys, real_keys = (keys_of(subject) for subject in both)
    assert fake_keys == real_keys
    assert both[0].in_line() == both[1].in_line()
    for key in ("lock", "line", "fence", "meta", "quarantine"):
        left = [subject.pttl(getattr(subject, key)) for subject in both]
        assert about(*left), key
