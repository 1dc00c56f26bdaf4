"""Membership, reply by reply: who votes, in which view, and who does not.

JOIN gives an identity, NOTE a view, SYNC a vote. INITIALIZE does all of it at once in a
new deployment. ``tests/model/membership.py`` has the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from celery_redlock.basics.resp import ErrorReply
from celery_redlock.members.view import JOINED
from celery_redlock.scripts import (
    ALL_SCRIPTS,
    EVICTS,
    FREE,
    GRANTED,
    MISCONFIGURED,
    QUARANTINED,
    TAKEN,
    UNSYNCED,
)
from tests.contract.subjects import (
    CLOSED,
    CONFIG,
    EXACT,
    ME,
    NEW,
    OTHER,
    PATIENCE,
    STRANGE,
    STRIPE,
    TOLERANCE,
    TTL,
    UNGUARDED,
    ServerSubject,
    Subject,
    value,
    view,
)

OLDER = [
    "protocol 1, max_ttl 60 s, nodes a",
    "format 2, max_ttl 60 s, nodes a",
    "format 3, max_ttl 60 s, nodes a",
]
GROWN = view(b="1.b2")  # the view CONFIG, after b was replaced
NEXT = view(epoch="2.bb")  # the next epoch, founded


def seem_restarted(subject: Subject) -> None:
    """Let the memory of a node be that of an earlier process."""
    subject.hset(subject.meta, "replid", "0" * 40)


def lose_memory(subject: Subject) -> None:
    """Delete all that a node knows of itself."""
    subject.delete(subject.meta)


def move_on(subject: Subject) -> None:
    """Let a node learn that another member was replaced."""
    assert subject.note(GROWN) == [GRANTED, 0]


def close(subject: Subject) -> None:
    """Take a node out of the vote, for a planned view."""
    assert subject.close()[0] == QUARANTINED


def is_unchanged(subject: Subject, act: Callable[[], Any]) -> Any:
    """Return the reply of a call that must change nothing on the node."""
    before = subject.read(subject.meta)
    reply = act()
    assert subject.read(subject.meta) == before
    return reply


# -- who votes ---------------------------------------------------------------------


def test_member_that_votes_grants_renews_and_restores(subject: Subject) -> None:
    """For clients with its view. Only these scripts write a lock, or a claim."""
    subject.admit()

    assert subject.acquire(config=CONFIG) == [GRANTED, 1]
    assert subject.extend(config=CONFIG) == [GRANTED, 0]
    subject.delete(subject.lock)
    assert subject.extend(config=CONFIG) == [FREE]
    assert subject.restore(config=CONFIG, fence=5) == [GRANTED, 0]
    assert subject.get(subject.lock) == value(5)
    assert subject.claim(config=CONFIG) == [GRANTED, 0]
    assert subject.keep_claim(config=CONFIG) == [GRANTED, 0]


VOTES = ["acquire", "extend", "restore", "claim", "keep_claim"]


@pytest.mark.parametrize("call", VOTES)
@pytest.mark.parametrize("has_lock", [False, True])
def test_node_that_does_not_vote_takes_part_in_nothing(
    subject: Subject, call: str, *, has_lock: bool
) -> None:
    """Neither in a grant nor in a renewal, in each of the states before the vote.

    It may have forgotten another holder, or its place may have been given away. The
    one exception is a renewal of a lock that it still has: see below.
    """
    if call == "extend" and has_lock:
        return
    longer = {} if "claim" in call else {"ttl_ms": 30_000}

    def ask() -> Any:
        reply = is_unchanged(
            subject, lambda: getattr(subject, call)(config=CONFIG, **longer)
        )
        assert subject.get(subject.lock) == (value(1) if has_lock else None)
        assert subject.pttl(subject.lock) <= subject.longest(TTL)
        return reply

    if has_lock:
        subject.set(subject.lock, value(1), 20_000)
    assert ask() == [UNSYNCED, b""]  # no memory
    subject.join()
    assert ask() == [UNSYNCED, subject.identity.encode()]  # no view
    subject.note(quarantine_ms=20_000)
    status, left = ask()
    assert (status, 20_000 - PATIENCE < left <= 20_000) == (QUARANTINED, True)
    subject.end_quarantine()
    assert ask() == [UNSYNCED, subject.identity.encode()]  # not confirmed
    subject.sync()
    close(subject)
    assert ask() == [MISCONFIGURED, subject.text(CLOSED)]
    seem_restarted(subject)
    assert ask() == [UNSYNCED, b""]


RENEWED = [GRANTED, 0]


def test_node_that_does_not_vote_yet_renews_a_lock_that_it_still_has(
    subject: Subject,
) -> None:
    """For clients with its view: it has granted the lock to no other client since."""

    def renew() -> Any:
        subject.set(subject.lock, value(1), 10_000)
        assert subject.extend(OTHER, config=CONFIG)[0] != GRANTED
        assert subject.acquire(OTHER, config=CONFIG)[0] != GRANTED
        reply = subject.extend(config=CONFIG, ttl_ms=20_000)
        assert (subject.pttl(subject.lock) > 15_000) == (reply == RENEWED)
        return reply

    assert renew() == [UNSYNCED, b""]  # without memory
    subject.join()
    assert renew()[0] == UNSYNCED  # without a view
    subject.note(quarantine_ms=20_000)
    in_quarantine = renew()
    if in_quarantine[0] == QUARANTINED:  # a store: it may be the copy of another one
        return
    assert in_quarantine == RENEWED
    subject.end_quarantine()
    assert renew() == RENEWED  # not confirmed
    seem_restarted(subject)
    assert renew() == RENEWED  # restarted, with what it has on its disk


def test_renewal_by_a_node_that_does_not_vote_is_a_vote(subject: Subject) -> None:
    """After it, the process proves no more that it has never voted."""
    subject.restart(keep_memory=False)
    subject.enter(CONFIG)
    subject.set(subject.lock, value(1), 10_000)

    assert subject.extend(config=CONFIG) == RENEWED

    lose_memory(subject)
    assert started(subject) is None


# How to call each script that compares, with the view of a client. The others move a
# node to a plan, and compare that one: `CLOSED` has `NEW`.
COMPARES: dict[str, Callable[[Subject, str], Any]] = {
    "acquire": lambda subject, config: subject.acquire(config=config),
    "extend": lambda subject, config: subject.extend(config=config),
    "restore": lambda subject, config: subject.restore(config=config),
    "acquire_permits": lambda subject, config: subject.acquire_permits(
        ["a"], [("a##", 2, TTL)], config=config
    ),
    "claim": lambda subject, config: subject.claim(config=config),
    "keep_claim": lambda subject, config: subject.keep_claim(config=config),
    "read_slots": lambda subject, config: subject.read_slots(config=config),
    "counters": lambda subject, config: subject.counters(config),
    "sync": lambda subject, config: subject.sync(config=config),
    "note": lambda subject, config: subject.note(config),
    "initialize": lambda subject, config: subject.initialize(config),
    "close": lambda subject, config: subject.close(old=config, new=config),
    "open": lambda subject, config: subject.open(new=config),
    # A member of the plan remembers that it is aborted, in every state.
    "abort": lambda subject, config: subject.abort(config.replace(ME, "another")),
    "reopen": lambda subject, config: subject.reopen(config),
}
COMPARES_NOTHING = {
    *("release", "raise_fence", "inspect", "request_cancel", "force_release"),
    *("list_releases", "join_wait_queue", "leave_wait_queue", "join"),
    *("inspect_permits", "join_permit_queue"),
    *("join_backlog", "leave_backlog", "read_backlog", "note_run"),
    *("number_in_backlog", "first_in_backlog"),
    *("note_published", "enter_successor", "start_successor", "withdraw_successor"),
    *("release_claim", "cool_down", "record_slots", "mark_slot", "record_standby"),
    "list_standbys",
}
OTHERS = [  # views that differ in one thing
    STRANGE,
    view(epoch="0.aa"),
    view(epoch="1.ab", kind="planned"),
    view(me="0.another"),
    CONFIG.replace("max_ttl 60 s", "max_ttl 61 s"),
    CONFIG.replace("guard on", "guard off"),
    CONFIG.replace("format 4", "format 5"),
    CONFIG.replace(", c:1/0=0.c1", ""),
    view(b="0.b0"),
    "format 4, max_ttl 60 s, restart guard on, nodes a:1/0, b:1/0, c:1/0",
    "",
]


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("name", COMPARES)
def test_no_script_skips_the_configuration(
    subject: Subject, name: str, *, closed: bool
) -> None:
    """Deployment, epoch, members, max_ttl, guard and format: a script compares all.

    The reply has the view of the node. A client that differs in one of them changes
    nothing, on a node that votes and on one that is closed, with and without a lock.
    """
    subject.admit()
    subject.acquire()
    subject.claim()
    if closed:
        close(subject)
    before = subject.everything()
    stored = subject.text(CLOSED if closed else CONFIG)

    for theirs in OTHERS:
        reply = COMPARES[name](subject, theirs)

        assert reply == ([FREE] if name == "reopen" else [MISCONFIGURED, stored])
        assert subject.everything() == before, theirs


def test_every_other_script_says_why_it_compares_nothing() -> None:
    """A new script has to be in one of the two lists."""
    sources = {script.name: script.source for script in ALL_SCRIPTS}

    assert sources.keys() - COMPARES.keys() == COMPARES_NOTHING
    says = {name for name in sources if "\n-- Compares no view: " in sources[name]}
    assert says == COMPARES_NOTHING


def move_to_the_next_epoch(subject: Subject) -> None:
    """Close a node for `NEW`, and open it there."""
    subject.close(quarantine_ms=0)
    assert subject.open() == [GRANTED, 0]


@pytest.mark.parametrize("move", [close, move_to_the_next_epoch, seem_restarted])
def test_release_frees_its_token_on_a_node_of_another_epoch(
    subject: Subject, move: Callable[[Subject], None]
) -> None:
    """And no other one. Otherwise the lock would stay until its ttl ends."""
    subject.acquire()
    subject.claim()
    move(subject)

    assert subject.release(OTHER) == 0
    assert subject.get(subject.lock) == value(1)
    assert subject.release_claim("job-2") == [FREE]

    assert subject.release() == 1
    assert subject.get(subject.lock) is None
    assert subject.release_claim() == [GRANTED, 0]
    assert subject.get(subject.key("claim:a")) is None


@pytest.mark.parametrize("theirs", [CONFIG, UNGUARDED])
def test_no_client_skips_the_guard(subject: Subject, theirs: str) -> None:
    """Whether nodes guard is a property of their view, and never of one client."""
    ours = UNGUARDED if theirs == CONFIG else CONFIG
    subject.admit(theirs)

    for call in (*VOTES, "counters", "sync", "initialize", "note"):
        reply = is_unchanged(subject, partial(getattr(subject, call), config=ours))
        assert reply == [MISCONFIGURED, subject.text(theirs)], call


@pytest.mark.parametrize("config", OLDER)
@pytest.mark.parametrize("guarded", ["", ", restart guard off"])
def test_memory_of_an_older_version_is_refused_and_never_lost(
    subject: Subject, config: str, guarded: str
) -> None:
    """Clients of that version may hold locks. Only `forget` ends it."""
    config += guarded
    subject.hset(subject.meta, "config", config)
    subject.hset(subject.meta, "replid", "0" * 40)
    refused = [MISCONFIGURED, config.encode()]

    for call in (*VOTES, "note", "counters", "sync", "initialize"):
        ask = partial(getattr(subject, call), config=CONFIG)
        assert is_unchanged(subject, ask) == refused, call
    assert is_unchanged(subject, subject.close) == refused
    assert is_unchanged(subject, subject.open) == refused
    assert is_unchanged(subject, subject.abort) == refused
    assert is_unchanged(subject, subject.reopen) == [FREE]
    reply = is_unchanged(subject, subject.join)
    assert reply == [GRANTED, 0, config.encode(), b"", 0, b"", b""]

    assert subject.join(config)[2] == JOINED.encode()


@pytest.mark.parametrize("lose", [seem_restarted, lose_memory])
@pytest.mark.parametrize("prepare", [None, move_on, close])
def test_node_without_memory_only_joins(
    subject: Subject,
    prepare: Callable[[Subject], None] | None,
    lose: Callable[[Subject], None],
) -> None:
    """It does not matter what it was before, or what it still has stored."""
    subject.admit()
    if prepare:
        prepare(subject)
    lose(subject)
    others = ("note", "counters", "sync", "initialize")

    for call in (*VOTES, *others, "close", "open", "abort", "reopen"):
        options = {"config": CONFIG} if call in VOTES else {}
        ask = partial(getattr(subject, call), **options)
        assert is_unchanged(subject, ask) == [UNSYNCED, b""], call


@pytest.mark.parametrize("field", ["config", "replid", "identity"])
@pytest.mark.parametrize("config", [CONFIG, UNGUARDED])
def test_part_of_a_memory_is_none(subject: Subject, config: str, field: str) -> None:
    """The node cannot tell what else is lost: it joins anew."""
    subject.admit(config)
    subject.hdel(subject.meta, field)

    assert is_unchanged(subject, lambda: subject.acquire(config=config)) == [
        UNSYNCED,
        b"",
    ]
    assert subject.join()[2] == JOINED.encode()


@pytest.mark.parametrize("keep_memory", [False, True])
def test_restart_ends_the_vote(subject: Subject, *, keep_memory: bool) -> None:
    """Also with memory: it may lack its last writes. What it has, it renews."""
    subject.admit()
    subject.acquire(config=CONFIG)
    before = subject.replid

    subject.restart(keep_memory=keep_memory)

    assert subject.replid != before
    assert subject.acquire(OTHER, config=CONFIG) == [UNSYNCED, b""]
    kept = RENEWED if keep_memory else [UNSYNCED, b""]
    assert subject.extend(config=CONFIG) == kept
    assert subject.release() == int(keep_memory)


def test_master_that_was_a_replica_has_no_vote(subject: Subject) -> None:
    """The process is the same, and the other server may have given it an old memory."""
    subject.admit()
    subject.acquire(config=CONFIG)
    before = subject.replid

    subject.promote()

    assert subject.replid != before
    assert subject.acquire(OTHER, config=CONFIG) == [UNSYNCED, b""]
    assert subject.extend(config=CONFIG) == [UNSYNCED, b""]
    assert subject.join()[2] == JOINED.encode()


def test_node_without_the_guard_votes_after_a_restart(subject: Subject) -> None:
    """If its keys are still there: the choice costs exclusion and fences."""
    subject.admit(UNGUARDED)
    subject.restart(keep_memory=True)

    assert subject.acquire(config=UNGUARDED) == [GRANTED, 1]
    assert subject.counters(UNGUARDED)[0] == GRANTED


# -- what a process proves ---------------------------------------------------------


def started(subject: Subject) -> bytes | None:
    """Return what a node notes at JOIN of the start of its process."""
    subject.join()
    return subject.hgetall(subject.meta).get(b"started")


def test_waits_of_a_process_that_never_voted_count_from_its_start(
    subject: Subject,
) -> None:
    """It has forgotten nothing, and what an earlier one granted ends in that time."""
    subject.restart(keep_memory=False)
    now_ms = subject.now_us // 1000
    since = int(started(subject) or 0)
    assert now_ms - 20_000 < since <= now_ms + 1000

    subject.hset(subject.meta, "started", now_ms - 10_000)
    assert subject.note(quarantine_ms=60_000) == [GRANTED, 0]

    fields = subject.hgetall(subject.meta)
    assert int(fields[b"quarantine_until"]) == now_ms + 50_000
    assert int(fields[b"known:b:1/0"]) == now_ms - 10_000
    assert b"started" not in fields


def test_start_that_is_not_over_shortens_no_wait(subject: Subject) -> None:
    """The uptime counts whole seconds, so a start may be noted that is to come."""
    subject.join()
    subject.hset(subject.meta, "started", subject.now_us // 1000 + 60_000)

    subject.note(quarantine_ms=60_000)

    until_ms = int(subject.hgetall(subject.meta)[b"quarantine_until"])
    assert until_ms - subject.now_us // 1000 <= 60_000


def flush(subject: Subject) -> None:
    """Delete all keys of a node."""
    subject.flush()


def promote(subject: Subject) -> None:
    """Make a node a replica, and a master again."""
    subject.promote()


@pytest.mark.parametrize("later", [lose_memory, flush, promote])
def test_process_that_has_voted_proves_nothing(
    subject: Subject, later: Callable[[Subject], None]
) -> None:
    """It may have forgotten what it granted, with or without its keys."""
    subject.restart(keep_memory=False)
    assert started(subject)
    lose_memory(subject)
    subject.admit()

    later(subject)

    assert started(subject) is None


def test_process_that_was_a_replica_proves_nothing(subject: Subject) -> None:
    """Its master has granted what it may not have got."""
    subject.restart(keep_memory=False)

    subject.promote()

    assert started(subject) is None


@pytest.mark.parametrize("reset", [("CONFIG", "RESETSTAT"), ("HSTRLEN", "a", "b")])
def test_server_whose_counters_do_not_count_from_its_start_proves_nothing(
    server: ServerSubject, reset: tuple[str, ...]
) -> None:
    """The mark that it has voted may be gone, or not be ours."""
    server.restart(keep_memory=False)
    server.command(*reset)

    assert started(server) is None


def test_server_that_flushed_its_scripts_proves_its_start(
    server: ServerSubject,
) -> None:
    """The proof does not rest on scripts, which any client may load and flush."""
    server.restart(keep_memory=False)
    server.command("SCRIPT", "FLUSH")

    assert started(server)


# -- a script that a denied command ends -------------------------------------------


def close_after_its_locks(subject: Subject) -> None:
    """Take a node out of the vote for so long that its old locks have ended."""
    subject.admit()
    close(subject)
    subject.end_quarantine()


@pytest.mark.parametrize(
    ("prepare", "act", "denied", "config"),
    [
        (Subject.join, Subject.initialize, "hstrlen", CONFIG),
        (partial(Subject.enter, quarantine_ms=0), Subject.sync, "hstrlen", CONFIG),
        (close_after_its_locks, Subject.open, "hstrlen", NEW),
        (close_after_its_locks, Subject.reopen, "hstrlen", CONFIG),
        (Subject.admit, partial(Subject.note, config=NEXT), "hdel", NEXT),
    ],
    ids=["initialize", "sync", "open", "reopen", "note"],
)
def test_script_that_a_denied_command_ends_gives_no_vote(
    server: ServerSubject,
    prepare: Callable[[Subject], Any],
    act: Callable[[Subject], Any],
    denied: str,
    config: str,
) -> None:
    """Its writes by then stay: never a vote without its mark or its quarantine."""
    server.flush()
    prepare(server)
    server.command("ACL", "SETUSER", "default", f"-{denied}")
    try:
        reply = act(server)
    finally:
        server.command("ACL", "SETUSER", "default", f"+{denied}")

    assert isinstance(reply, ErrorReply)
    assert server.acquire(config=config)[0] != GRANTED


# -- eviction ----------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_node_that_may_evict_grants_nothing_until_it_may_not(
    subject: Subject, policy: str
) -> None:
    """It says by which policy, and forgets nothing."""
    subject.admit()
    assert subject.acquire()[0] == GRANTED
    refused = [EVICTS, policy.encode()]
    try:
        subject.may_evict(policy)
        subject.look_again()

        assert subject.acquire(token=OTHER) == refused
        assert subject.acquire(token=OTHER) == refused
        assert subject.claim() == refused
        assert subject.restore(token=OTHER) == refused
    finally:
        subject.may_evict("noeviction")
    assert subject.extend() == [GRANTED, 0]
    assert subject.acquire(token=OTHER)[0] == TAKEN
    subject.release()
    assert subject.acquire(token=OTHER)[0] == GRANTED


def test_node_that_has_evicted_a_key_has_lost_its_memory(subject: Subject) -> None:
    """The key may have been a lock. The node votes again after it has joined anew."""
    subject.admit()
    assert subject.acquire()[0] == GRANTED
    before = subject.identity

    subject.evict(subject.lock)

    assert subject.acquire(token=OTHER) == [UNSYNCED, b""]
    assert subject.extend() == [UNSYNCED, b""]
    subject.enter()
    assert subject.identity != before
    assert subject.acquire(token=OTHER)[0] == QUARANTINED
    subject.end_quarantine()
    assert subject.sync() == [GRANTED, 0]
    assert subject.acquire(token=OTHER)[0] == GRANTED


def test_node_without_the_number_of_evicted_keys_has_lost_its_memory(
    subject: Subject,
) -> None:
    """A part of a memory is none."""
    subject.admit()
    if subject.hgetall(subject.meta).get(b"evicted") is None:
        pytest.skip("a store evicts nothing")

    subject.hdel(subject.meta, "evicted")

    assert subject.acquire() == [UNSYNCED, b""]


# -- JOIN --------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_ms", [30_000, 3_600_000])
def test_waits_that_a_clock_stored_that_was_ahead_begin_anew(
    subject: Subject, ahead_ms: int
) -> None:
    """One clock that is ahead for a moment does not stop all votes for as long."""
    subject.enter(quarantine_ms=20_000)
    now_ms = subject.now_us // 1000
    later = {"quarantine_until": ahead_ms + 20_000, "known:b:1/0": ahead_ms}
    for field, wait_ms in later.items():
        subject.hset(subject.meta, field, now_ms + wait_ms)

    subject.join()

    fields = subject.hgetall(subject.meta)
    end_ms = subject.now_us // 1000
    assert now_ms + 20_000 <= int(fields[b"quarantine_until"]) <= end_ms + 20_000
    assert now_ms <= int(fields[b"known:b:1/0"]) <= end_ms
    assert is_unchanged(subject, subject.join)[2] == subject.text(CONFIG)


def test_join_gives_an_identity_and_no_view(subject: Subject) -> None:
    """The identity has a random part and names the memory; nothing else is there."""
    reply = subject.join(random="abcd0123")

    identity = b"abcd0123" + subject.replid[:8]
    assert reply == [GRANTED, 0, JOINED.encode(), identity, 0, b"", b""]
    stored = subject.hgetall(subject.meta)
    stored.pop(b"started", None)
    stored.pop(b"evicted", None)
    assert stored == {
        b"config": JOINED.encode(),
        b"replid": subject.replid,
        b"identity": identity,
    }


def test_join_of_a_node_with_memory_only_reads(subject: Subject) -> None:
    """It tells the view, the identity, and whether the node votes."""
    subject.join()
    first = subject.identity.encode()
    assert is_unchanged(subject, subject.join)[2:] == [
        JOINED.encode(),
        first,
        0,
        b"",
        b"",
    ]

    subject.note()
    text = subject.text(CONFIG)
    assert is_unchanged(subject, subject.join) == [GRANTED, 0, text, first, 0, b"", b""]

    subject.end_quarantine()
    subject.sync()
    assert is_unchanged(subject, subject.join) == [GRANTED, 0, text, first, 1, b"", b""]


def test_join_tells_what_a_closed_node_was(subject: Subject) -> None:
    """The view that it had, and for which plans it never opens."""
    subject.admit()
    subject.close()
    subject.hset(subject.meta, "aborted", "a plan")

    reply = is_unchanged(subject, subject.join)

    had = subject.text(CONFIG)
    identity = subject.identity.encode()
    assert reply[2:] == [subject.text(CLOSED), identity, 0, had, b"a plan"]


@pytest.mark.parametrize("lose", [seem_restarted, lose_memory])
@pytest.mark.parametrize("is_closed", [False, True])
def test_join_after_a_loss_gives_another_identity(
    subject: Subject, lose: Callable[[Subject], None], *, is_closed: bool
) -> None:
    """The vote, the view and the wait of the server before are not its own."""
    subject.admit()
    subject.hset(subject.meta, STRIPE, 7)
    subject.hset(subject.meta, "aborted", "a plan")
    if is_closed:
        subject.close()
    before = subject.identity
    lose(subject)

    subject.join()

    meta = subject.hgetall(subject.meta)
    assert meta[b"identity"] != before.encode()
    assert meta[b"config"] == JOINED.encode()
    assert not {b"votes", b"view", b"quarantine_until", b"aborted"} & set(meta)


def test_join_keeps_the_fence_counters(subject: Subject) -> None:
    """A counter that is too high does no harm, so no loss lowers one."""
    subject.admit()
    subject.hset(subject.meta, STRIPE, 7)
    seem_restarted(subject)

    subject.join()

    assert subject.counter() == b"7"


@pytest.mark.parametrize("forget", [CONFIG, *OLDER, CLOSED])
def test_join_forgets_the_view_that_it_is_told(subject: Subject, forget: str) -> None:
    """And no other one: the node may have moved on since the client looked."""
    if forget in OLDER:
        subject.hset(subject.meta, "config", forget)
    else:
        subject.admit()
    if forget == CLOSED:
        subject.close()
    before = subject.identity
    assert is_unchanged(subject, lambda: subject.join(GROWN))[2] == subject.text(forget)

    reply = subject.join(forget)

    assert reply[2:] == [JOINED.encode(), subject.identity.encode(), 0, b"", b""]
    assert subject.identity != before
    assert subject.acquire(config=CONFIG) == [UNSYNCED, subject.identity.encode()]


# -- NOTE --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [CONFIG, view(me=f"1.{ME}"), view(me=f"3.{ME}", kind="planned")]
)
def test_note_lets_a_server_enter_without_a_vote(subject: Subject, config: str) -> None:
    """As a founder, or in the place of another one. It waits, and ages begin now."""
    subject.join()
    subject.hdel(subject.meta, "started")  # as in a process that has voted
    before = subject.now_us // 1000

    assert subject.note(config, 20_000) == [GRANTED, 0]

    meta = subject.hgetall(subject.meta)
    assert meta[b"config"] == subject.text(config)
    assert b"votes" not in meta
    for field in (b"known:a:1/0", b"known:b:1/0", b"known:c:1/0"):
        assert before <= int(meta[field]) <= subject.now_us // 1000
    until = int(meta[b"quarantine_until"]) - 20_000
    assert before <= until <= subject.now_us // 1000


def test_note_twice_does_not_start_the_wait_anew(subject: Subject) -> None:
    """All clients send it until it has arrived."""
    subject.enter(quarantine_ms=20_000)

    assert is_unchanged(subject, lambda: subject.note(CONFIG, 61_000)) == [GRANTED, 0]


def test_note_of_a_replaced_member_leaves_the_vote(subject: Subject) -> None:
    """The node votes on, for clients that know of it. Only that age begins anew."""
    subject.admit()
    for label in ("a:1/0", "b:1/0", "c:1/0"):
        subject.hset(subject.meta, f"known:{label}", 5)

    assert subject.note(view(b="2.b2")) == [GRANTED, 0]

    meta = subject.hgetall(subject.meta)
    assert meta[b"known:a:1/0"] == meta[b"known:c:1/0"] == b"5"
    assert int(meta[b"known:b:1/0"]) > 5
    assert meta[b"votes"] == b"1"
    assert subject.acquire(config=CONFIG) == [
        MISCONFIGURED,
        subject.text(view(b="2.b2")),
    ]
    assert subject.acquire(config=view(b="2.b2")) == [GRANTED, 1]


def test_note_in_quarantine_leaves_the_wait(subject: Subject) -> None:
    """A newcomer gets its vote also where other nodes change meanwhile."""
    subject.enter(quarantine_ms=20_000)
    until = subject.hgetall(subject.meta)[b"quarantine_until"]

    subject.note(GROWN, 61_000)

    assert subject.hgetall(subject.meta)[b"quarantine_until"] == until


@pytest.mark.parametrize(
    "lesser",
    [
        view(b="1.b2", c="1.c1"),  # a lower number
        view(b="2.b0", c="1.c1"),  # an identity that comes before
        view(b="3.b3", c="0.c1"),  # one place up, one place down
        view(b="2.b2", c="0.c9"),
    ],
)
def test_note_never_lowers_a_place(subject: Subject, lesser: str) -> None:
    """A message that comes late changes nothing, and the reply has the present view."""
    subject.admit(view(b="2.b1", c="1.c1"))
    present = subject.text(view(b="2.b1", c="1.c1"))

    assert is_unchanged(subject, lambda: subject.note(lesser)) == [
        MISCONFIGURED,
        present,
    ]


@pytest.mark.parametrize("config", [view(me="1.another"), view(me="0.unknown")])
@pytest.mark.parametrize("is_member", [False, True])
def test_note_without_the_own_identity_is_refused(
    subject: Subject, config: str, *, is_member: bool
) -> None:
    """The view is about another server at this name. The node stays as it is."""
    if is_member:
        subject.admit()
    else:
        subject.join()
    present = subject.hgetall(subject.meta)[b"config"]

    assert is_unchanged(subject, lambda: subject.note(config)) == [
        MISCONFIGURED,
        present,
    ]


@pytest.mark.parametrize("garbage", ["", "garbage", JOINED, f"{CONFIG}, x", CLOSED])
@pytest.mark.parametrize("call", ["note", "initialize"])
def test_text_that_is_no_view_is_never_stored(
    subject: Subject, call: str, garbage: str
) -> None:
    """A later version writes another text. The node stays as it is."""
    subject.join()

    reply = is_unchanged(subject, lambda: getattr(subject, call)(garbage))

    refused = [MISCONFIGURED, JOINED.encode()]
    if garbage == JOINED and call == "note":
        refused = [GRANTED, 0]
    if call == "initialize":
        refused = [UNSYNCED, subject.identity.encode()]
    assert reply == refused


def test_note_of_a_planned_view_takes_no_first_member(subject: Subject) -> None:
    """Only OPEN makes one, when a majority of the old view is closed."""
    subject.join()

    reply = is_unchanged(subject, lambda: subject.note(NEW))

    assert reply == [MISCONFIGURED, JOINED.encode()]


@pytest.mark.parametrize("is_voting", [False, True])
def test_note_moves_a_first_member_to_the_epoch_that_it_founds(
    subject: Subject, *, is_voting: bool
) -> None:
    """It votes no more, and waits: members of the epoch before may hold locks."""
    if is_voting:
        subject.admit()
        subject.acquire(config=CONFIG)
    else:
        subject.enter(quarantine_ms=1)

    assert subject.note(NEXT, 20_000) == [GRANTED, 0]

    assert subject.extend(config=CONFIG) == [MISCONFIGURED, subject.text(NEXT)]
    status, left = subject.acquire(config=NEXT)
    assert (status, 20_000 - PATIENCE < left <= 20_000) == (QUARANTINED, True)
    assert b"votes" not in subject.hgetall(subject.meta)


@pytest.mark.parametrize(
    "config",
    [
        view(me=f"1.{ME}", epoch="2.bb"),  # as a newcomer: SYNC of r voting members
        NEW,  # a planned epoch: CLOSE and OPEN
        view(epoch="0.zz"),
        view(epoch="1.a9"),  # of two with one number, the greater nonce counts
    ],
)
def test_note_does_not_move_a_member_in_another_way(
    subject: Subject, config: str
) -> None:
    """Nor to an epoch that comes before its own."""
    subject.admit()

    assert is_unchanged(subject, lambda: subject.note(config)) == [
        MISCONFIGURED,
        subject.text(CONFIG),
    ]


def test_note_lets_no_voting_node_leave_its_deployment(subject: Subject) -> None:
    """A list of nodes with one wrong address must not take a node from the others."""
    other = view(deployment="d9", epoch="7.ff")
    subject.admit()
    assert is_unchanged(subject, lambda: subject.note(other)) == [
        MISCONFIGURED,
        subject.text(CONFIG),
    ]

    subject.hdel(subject.meta, "votes")
    assert subject.note(other) == [GRANTED, 0]


def test_note_of_an_equal_epoch_of_another_deployment_is_taken(
    subject: Subject,
) -> None:
    """Only a lesser one is not: two clients that found at once must come to one."""
    subject.enter()

    assert subject.note(view(deployment="d9")) == [GRANTED, 0]


def test_note_of_a_closed_node_is_refused(subject: Subject) -> None:
    """It has promised a reconfiguration that it has no view but the planned one."""
    subject.admit()
    close(subject)

    for config in (CONFIG, GROWN, NEXT, NEW):
        reply = is_unchanged(subject, partial(subject.note, config))
        assert reply == [MISCONFIGURED, subject.text(CLOSED)]


# -- COUNTERS ----------------------------------------------------------------------


def told(reply: list[Any]) -> dict[bytes, int]:
    """Return the fields that COUNTERS tells."""
    return dict(zip(reply[2::2], map(int, reply[3::2]), strict=True))


def test_counters_tell_fences_and_ages(subject: Subject) -> None:
    """All fence counters, and for how many ms the node has known each member."""
    subject.admit()
    subject.hset(subject.meta, "floor", 5)
    subject.hset(subject.meta, STRIPE, EXACT)
    subject.hset(subject.meta, "known:b:1/0", subject.now_us // 1000 - 50_000)

    reply = is_unchanged(subject, subject.counters)

    assert reply[:2] == [GRANTED, 0]
    fields = told(reply)
    assert 50_000 <= fields.pop(b"known:b:1/0") < 60_000
    assert 0 <= fields.pop(b"known:a:1/0") < 10_000
    assert 0 <= fields.pop(b"known:c:1/0") < 10_000
    assert fields == {b"floor": 5, STRIPE.encode(): EXACT}


def test_counters_of_a_node_that_does_not_vote_say_so(subject: Subject) -> None:
    """A founder needs the ages of the others, which do not vote either."""
    subject.enter(quarantine_ms=20_000)

    reply = is_unchanged(subject, subject.counters)
    assert (reply[0], 20_000 - PATIENCE < reply[1] <= 20_000) == (QUARANTINED, True)
    assert set(told(reply)) == {b"known:a:1/0", b"known:b:1/0", b"known:c:1/0"}

    subject.end_quarantine()
    reply = is_unchanged(subject, subject.counters)
    assert reply[:2] == [UNSYNCED, subject.identity.encode()]
    assert len(told(reply)) == 3


def test_counters_of_a_node_without_view_confirm_no_other(subject: Subject) -> None:
    """It knows no member."""
    subject.join()

    assert subject.counters() == [UNSYNCED, subject.identity.encode()]


# -- SYNC --------------------------------------------------------------------------


def test_sync_lets_a_node_vote_above_these_fences(subject: Subject) -> None:
    """Field by field the greater counter. The wait of the node is over."""
    subject.enter()
    subject.end_quarantine()
    subject.hset(subject.meta, "1", 10)
    subject.hset(subject.meta, "2", 20)

    pairs = ["1", 15, "2", 15, "3", EXACT, b"floor", 7]
    assert subject.sync(*pairs) == [GRANTED, 0]

    assert subject.counters_of_all() == {
        b"1": b"15",
        b"2": b"20",
        b"3": str(EXACT).encode(),
        b"floor": b"7",
    }
    assert b"quarantine_until" not in subject.hgetall(subject.meta)
    assert subject.acquire(config=CONFIG) == [GRANTED, 8]


def test_sync_with_floor_raises_all_counters_to_its_time(subject: Subject) -> None:
    """If too few nodes know them: above TIME and every hint. No counter goes back."""
    subject.enter()
    subject.end_quarantine()
    before = subject.now_us

    assert subject.sync(STRIPE, 3, set_floor=1) == [GRANTED, 0]

    floor = int(subject.counter("floor") or b"0")
    assert before <= floor - TOLERANCE <= subject.now_us
    assert subject.counter() == b"3"
    assert subject.acquire(config=CONFIG) == [GRANTED, floor + 1]


def test_sync_of_a_voting_node_changes_nothing(subject: Subject) -> None:
    """Two clients confirm it at once, and the second comes late."""
    subject.admit()

    reply = is_unchanged(subject, lambda: subject.sync(STRIPE, 9, set_floor=1))

    assert reply == [GRANTED, 0]


@pytest.mark.parametrize("state", ["joining", "voting", "joined"])
def test_sync_for_another_identity_is_refused(subject: Subject, state: str) -> None:
    """It was confirmed before its last loss of memory, or is another server."""
    subject.join()
    before = subject.identity
    subject.delete(subject.meta)
    subject.join()
    if state != "joined":
        subject.note()
        subject.end_quarantine()
    if state == "voting":
        subject.sync()

    reply = is_unchanged(
        subject, lambda: subject.sync(STRIPE, 3, identity=before, set_floor=1)
    )

    assert reply == [UNSYNCED, subject.identity.encode()]


def test_sync_of_a_node_without_view_is_refused(subject: Subject) -> None:
    """It enters a view first, with NOTE, and waits there."""
    subject.join()

    reply = is_unchanged(subject, lambda: subject.sync(STRIPE, 3, set_floor=1))

    assert reply == [UNSYNCED, subject.identity.encode()]


def test_sync_in_quarantine_is_refused(subject: Subject) -> None:
    """The node waits by its own clock, and not by that of a client."""
    subject.enter(quarantine_ms=20_000)

    status, left = is_unchanged(subject, lambda: subject.sync(STRIPE, 3, set_floor=1))

    assert (status, 20_000 - PATIENCE < left <= 20_000) == (QUARANTINED, True)


def test_quarantine_ends_by_the_clock_of_the_node(subject: Subject) -> None:
    """And not before."""
    subject.enter(quarantine_ms=30)
    subject.wait_until(lambda: not subject.is_quarantined)

    assert subject.sync() == [GRANTED, 0]


def test_sync_for_an_earlier_view_is_refused(subject: Subject) -> None:
    """Another member was replaced since: those that confirmed it may be gone."""
    subject.enter()
    subject.end_quarantine()
    subject.note(GROWN)

    assert is_unchanged(subject, subject.sync) == [MISCONFIGURED, subject.text(GROWN)]
    assert subject.sync(config=GROWN) == [GRANTED, 0]


def test_sync_of_a_closed_node_is_refused(subject: Subject) -> None:
    """Only OPEN and REOPEN let it vote."""
    subject.admit()
    close(subject)
    subject.end_quarantine()

    for config in (CONFIG, NEW):
        reply = is_unchanged(subject, partial(subject.sync, config=config))
        assert reply[0] != GRANTED
        assert subject.acquire(config=config)[0] != GRANTED


# -- INITIALIZE --------------------------------------------------------------------


def test_initialize_lets_a_joined_node_vote_at_once(subject: Subject) -> None:
    """Its counters start above its TIME and every hint."""
    subject.join()
    before = subject.now_us

    assert subject.initialize() == [GRANTED, 0]

    meta = subject.hgetall(subject.meta)
    assert meta[b"config"] == subject.text(CONFIG)
    assert meta[b"votes"] == b"1"
    assert b"quarantine_until" not in meta
    assert {b"known:a:1/0", b"known:b:1/0", b"known:c:1/0"} < set(meta)
    floor = int(subject.counter("floor") or b"0")
    assert before <= floor - TOLERANCE <= subject.now_us
    assert subject.acquire(config=CONFIG) == [GRANTED, floor + 1]


def test_initialize_gives_all_nodes_one_floor(subject: Subject) -> None:
    """If their clocks agree with the operator's. It is above every hint as well."""
    hint = subject.now_us - TOLERANCE // 2
    subject.join()

    subject.initialize(hint_us=hint)

    assert int(subject.counter("floor") or 0) == hint + 2 * TOLERANCE


def test_initialize_never_lowers_the_floor(subject: Subject) -> None:
    """A clock that was set back does not bring old fences again."""
    ahead = subject.now_us + 3_600_000_000
    subject.join()
    subject.hset(subject.meta, "floor", ahead)

    subject.initialize()

    assert subject.counter("floor") == str(ahead).encode()


def test_second_initialize_gives_no_earlier_fence(subject: Subject) -> None:
    """Also if the clock of a client was ahead of the node's, as far as it may be."""
    subject.join()
    subject.initialize()
    ahead = subject.now_us + TOLERANCE - 1_000_000
    _, fence = subject.acquire(config=CONFIG, hint_us=ahead)
    subject.flush()
    subject.clock.sleep(0.001)
    subject.join()
    subject.initialize()

    assert subject.acquire(config=CONFIG)[1] > fence


def test_initialize_of_a_voting_node_changes_nothing(subject: Subject) -> None:
    """Twice is harmless."""
    subject.admit()

    assert is_unchanged(subject, subject.initialize) == [GRANTED, 0]


def test_initialize_ends_no_quarantine(subject: Subject) -> None:
    """A node with a view may have lost locks, and waits like all."""
    subject.enter(quarantine_ms=20_000)
    reply = is_unchanged(subject, subject.initialize)
    assert reply[0] == QUARANTINED, (reply, subject.read(subject.meta))
    assert 20_000 - PATIENCE < reply[1] <= 20_000

    subject.end_quarantine()
    assert is_unchanged(subject, subject.initialize) == [
        UNSYNCED,
        subject.identity.encode(),
    ]


def test_initialize_admits_no_server_that_has_replaced_a_member(
    subject: Subject,
) -> None:
    """The old one may still vote for other clients: the new one waits."""
    subject.join()

    reply = is_unchanged(subject, lambda: subject.initialize(view(me=f"1.{ME}")))

    assert reply == [UNSYNCED, subject.identity.encode()]


def test_initialize_of_a_joined_node_that_restarted_is_refused(
    subject: Subject,
) -> None:
    """All that it knows is of another process."""
    subject.join()
    config = view().replace(ME, subject.identity)
    seem_restarted(subject)

    reply = is_unchanged(subject, lambda: subject.initialize(config))

    assert reply == [UNSYNCED, b""]


def test_initialize_without_the_own_identity_is_refused(subject: Subject) -> None:
    """The server at this name was replaced between the look and the message."""
    subject.join()

    reply = is_unchanged(subject, lambda: subject.initialize(view(me="0.another")))

    assert reply == [UNSYNCED, subject.identity.encode()]
