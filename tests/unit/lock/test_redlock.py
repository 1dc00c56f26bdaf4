"""Acquire, release and inspect: leases, and what is left on the nodes."""

from __future__ import annotations

import asyncio
import copy
import math
from datetime import timedelta
from typing import Any

import pytest

from celery_redlock.basics.timing import Timing
from celery_redlock.errors import (
    ConfigurationError,
    LockContended,
    LockHeld,
    LockLost,
    QuorumUnreachable,
    RedlockError,
)
from celery_redlock.locks import redlock as module
from celery_redlock.locks.lease import Holder, LeaseState, drift_of, new_base
from celery_redlock.locks.limits import Limit
from celery_redlock.locks.redlock import Redlock
from celery_redlock.stores.connection import StoreError
from celery_redlock.testing import FakeNodes
from tests.unit.lock.support import (
    FREE,
    TTL,
    VALIDITY,
    Site,
    asked,
    forget,
    hold,
    holders,
    ttls,
)

AGAIN = ["release", "acquire"]  # the requests of a second try


def test_service_has_the_documented_durations() -> None:
    """These are used where none is given."""
    redlock = Redlock(["redis://a", "redis://b", "redis://c"])

    assert redlock.timing == Timing(30.0, 60.0, 0.05, 1.0)


def test_repr_names_nodes_and_no_password() -> None:
    """The repr may end up in logs."""
    redlock = Redlock(["redis://user:secret@a:1/2", "unix:///s.sock"])

    assert repr(redlock) == "<Redlock a:1/2, /s.sock/0>"


# -- acquire ---------------------------------------------------------------------------


def test_close_fails_open_requests_and_the_next_use_reconnects(site: Site) -> None:
    """A request without a reply has failed; a closed service opens when it is used."""
    site.nodes.freeze(4)
    ballot = site.redlock.inspect("a").ballot
    assert "was closed" not in ballot.reasons()

    site.redlock.close()

    assert "node-5:6379/0 was closed" in ballot.reasons()
    site.nodes.thaw()
    assert site.redlock.acquire("b").votes == 5


def test_acquire_returns_a_lease_that_all_nodes_granted(site: Site) -> None:
    """One round trip; every node stores the token for the ttl."""
    lease = site.redlock.acquire("k")

    assert lease.is_valid()
    assert (lease.key, lease.ttl, lease.votes) == ("k", TTL, 5)
    assert lease.state is LeaseState.HELD
    assert holders(site.nodes) == [lease.token] * 5
    assert ttls(site.nodes) == [10_000] * 5
    assert asked(site.nodes) == ["acquire"]


@pytest.mark.parametrize(
    ("ttl", "seconds"), [(None, 10.0), (2.5, 2.5), (timedelta(seconds=40), 40.0)]
)
def test_acquire_asks_for_the_ttl(site: Site, ttl: Any, seconds: float) -> None:
    """The default is the service's ttl; seconds or a timedelta replace it."""
    lease = site.redlock.acquire("k", ttl)

    assert lease.ttl == seconds
    assert ttls(site.nodes) == [seconds * 1000] * 5


def test_acquire_stores_its_holder(site: Site) -> None:
    """The token begins with the given base, and other clients see the holder."""
    base = new_base()
    given = Holder("", task="t", task_id="id", host="h", pid=3, started=4.5)

    lease = site.redlock.acquire("k", base=base, holder=given)

    assert lease.token.startswith(f"{base}.")
    holder = site.redlock.inspect("k").holder
    assert holder == Holder(lease.token, lease.fence, "t", "id", "h", 3, 4.5)


def test_acquire_stores_this_process_by_default(site: Site) -> None:
    """Without a holder: this host and process, and the wall clock."""
    site.redlock.acquire("k")

    holder = site.redlock.inspect("k").holder
    here = Holder.here(started=site.clock.wall())
    assert holder is not None
    assert (holder.host, holder.pid, holder.started) == (
        here.host,
        here.pid,
        here.started,
    )


@pytest.mark.parametrize("count", range(1, 8))
def test_minority_may_be_down(count: int) -> None:
    """With N nodes, N − (N // 2 + 1) may be down, and not one more."""
    nodes = FakeNodes(count)
    redlock = nodes.redlock()
    spare = count - redlock.quorum
    for node in nodes.nodes[:spare]:
        node.kill()

    lease = redlock.acquire("a")

    assert lease.votes == redlock.quorum == count // 2 + 1
    nodes.nodes[spare].kill()
    with pytest.raises(QuorumUnreachable) as caught:
        redlock.acquire("b")
    alone = "The node gave no vote on 'b'"
    assert (alone if count == 1 else f"need {redlock.quorum}") in str(caught.value)


def test_interrupted_acquire_releases(site: Site) -> None:
    """A time limit, or Ctrl-C, between request and reply leaves no lock."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    site.nodes.latency(0.01)
    site.clock.at(0.005, interrupt)

    with pytest.raises(KeyboardInterrupt):
        site.redlock.acquire("k")

    assert asked(site.nodes) == ["acquire", "release"]
    assert holders(site.nodes) == FREE


def test_coroutine_acquires_with_all_that_a_thread_may_ask_for(site: Site) -> None:
    """``aacquire`` hands every argument on."""
    base = new_base()
    given = Holder("", task="t", task_id="id", host="h", pid=3, started=4.5)
    one = (Limit("k", 1, 60.0), Limit("k", 1))

    lease = asyncio.run(
        site.redlock.aacquire("k", 2.5, base=base, holder=given, limits=one)
    )

    assert (lease.ttl, lease.token.partition(".")[0]) == (2.5, base)
    holder = site.redlock.inspect("k").holder
    assert holder
    assert (holder.task, holder.host) == ("t", "h")
    assert lease.choice
    assert [name for _, name in lease.choice.starts] == ["k@@1"]


def test_coroutine_waits_for_as_long_as_it_says(site: Site) -> None:
    """By default not at all."""
    lease = site.rival.acquire("k")

    async def wait() -> None:
        with pytest.raises(LockHeld):
            await asyncio.wait_for(site.redlock.aacquire("k"), 60)
        waiting = asyncio.create_task(site.redlock.aacquire("k", wait=5.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asked(site.nodes).count("acquire") == 2
        site.rival.release(lease)
        assert (await asyncio.wait_for(waiting, 60)).is_valid()

    asyncio.run(wait())


# -- bad input -------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf, 60.1, 0.15, True, "10"])
def test_ttl_must_fit(site: Site, ttl: Any) -> None:
    """Nothing is sent for a wrong one."""
    with pytest.raises(ConfigurationError, match="ttl"):
        site.redlock.acquire("k", ttl)

    assert asked(site.nodes) == []


def test_steps_need_a_key(site: Site) -> None:
    """A caller of them makes the text of the key itself."""
    with pytest.raises(ConfigurationError, match=r"'' cannot be used: it is empty\."):
        site.redlock.carry_out(site.redlock.acquiring(""))


# -- waiting ---------------------------------------------------------------------


def test_steps_do_not_wait_by_default(site: Site) -> None:
    """As ``acquire`` does not."""
    site.rival.acquire("k")

    with pytest.raises(LockHeld):
        site.redlock.carry_out(site.redlock.acquiring("k"))

    assert site.clock.slept == []


@pytest.mark.parametrize(("ttl", "wait", "longest"), [(None, 2.0, 0.25), (1, 3.0, 0.1)])
def test_acquire_gives_up_when_its_wait_is_over(
    site: Site, ttl: float | None, wait: float, longest: float
) -> None:
    """It does not give up much sooner. The longest pause is a tenth of the ttl."""
    site.rival.acquire("k")

    with pytest.raises(LockHeld):
        site.redlock.acquire("k", ttl=ttl, wait=wait)

    assert wait - longest <= site.clock.monotonic() - 1000.0 <= wait
    assert all(0 < pause <= longest for pause in site.clock.slept)
    assert max(site.clock.slept) > longest / 2
    assert asked(site.nodes).count("acquire") == len(site.clock.slept) + 1


def test_acquire_waits_for_nodes_to_come_back(site: Site) -> None:
    """``wait`` also waits for nodes that do not answer."""
    site.nodes.freeze(0, 1, 2)
    site.clock.at(3.0, site.nodes.thaw)

    lease = site.redlock.acquire("k", wait=5.0)

    assert 3.0 <= site.clock.monotonic() - 1000.0 < 4.0
    assert lease.is_valid()


@pytest.mark.parametrize("given", [None, Holder.here(task="t", started=1.5)])
def test_holder_that_waited_is_shown_since_its_grant(
    site: Site, given: Holder | None
) -> None:
    """Its age is the time for which it has the lock, without its wait."""
    hold(site.nodes, 0, 1, 2)
    site.clock.at(3.0, lambda: forget(site.nodes, 0, 1, 2))

    site.redlock.acquire("k", wait=5.0, holder=given)

    holder = site.redlock.inspect("k").holder
    assert holder
    assert holder.started == pytest.approx(site.clock.wall(), abs=0.001)


# -- validity --------------------------------------------------------------------------


def test_validity_is_the_ttl_less_the_drift(site: Site) -> None:
    """It counts from before the first send; 1 % and 2 ms are for clocks that differ."""
    site.nodes.latency(0.03)
    before = site.clock.monotonic()

    lease = site.redlock.acquire("k")

    assert site.clock.monotonic() == pytest.approx(before + 0.03)
    assert lease.started_at == before
    assert lease.until == pytest.approx(before + TTL - 0.1 - 0.002)
    assert lease.remaining() == pytest.approx(TTL - 0.1 - 0.002 - 0.03)
    site.clock.advance(TTL - 0.1 - 0.002 - 0.03)
    assert not lease.is_valid()


def test_loss_says_since_when_the_lock_is_not_confirmed(site: Site) -> None:
    """It counts from before the last request, not from the end of the validity."""
    lease = site.redlock.acquire("k", ttl=30.0)
    site.clock.advance(4.0)
    assert site.redlock.extend(lease)
    site.clock.advance(45.0)

    assert "it was last confirmed 45.0 s ago." in str(lease.lost_error())


def test_validity_of_a_later_try_counts_from_that_try(site: Site) -> None:
    """Waiting for a lock costs none of its validity."""
    hold(site.nodes, 0, 1, 2)
    site.clock.at(3.0, lambda: forget(site.nodes, 0, 1, 2))

    lease = site.redlock.acquire("k", wait=5.0)

    assert site.clock.monotonic() - lease.started_at == 0
    assert lease.remaining() == pytest.approx(TTL - drift_of(TTL))


def test_acquire_never_returns_a_lease_that_has_ended(site: Site) -> None:
    """After every try has ended too late: an error, and nothing is held."""
    site.nodes.latency(0.01)

    def stall() -> None:
        site.clock.advance(TTL)
        site.clock.at(0.002, stall)

    site.clock.at(0.002, stall)

    with pytest.raises(LockContended) as caught:
        site.redlock.acquire("k")

    assert "granted on 5 of 5 nodes, but its fence or its validity" in str(caught.value)
    assert holders(site.nodes) == FREE


@pytest.mark.parametrize(
    ("took", "again"), [(VALIDITY - 0.001, []), (VALIDITY, AGAIN), (TTL + 0.005, AGAIN)]
)
def test_validity_is_checked_after_the_last_round_trip(
    site: Site, took: float, again: list[str]
) -> None:
    """A process that was stopped between request and reply has won nothing.

    A lease is granted up to a millisecond before its end, and not at its end.
    """
    site.nodes.latency(0.01)
    site.clock.at(0.005, lambda: site.clock.advance(took - 0.005))

    lease = site.redlock.acquire("k")

    assert asked(site.nodes) == ["acquire", *again]
    assert lease.is_valid()
    assert (lease.started_at == 1000.0) == (not again)


# -- release -----------------------------------------------------------------------


def test_release_deletes_the_lock_everywhere(site: Site) -> None:
    """One round trip; the lease is released; the key can be taken again."""
    lease = site.redlock.acquire("k")
    site.nodes.asked.clear()

    assert site.redlock.release(lease) == 5

    assert asked(site.nodes) == ["release"]
    assert lease.state is LeaseState.RELEASED
    assert not lease.is_valid()
    assert holders(site.nodes) == FREE
    assert site.redlock.acquire("k").is_valid()


def test_steps_of_a_release_keep_nothing_by_default(site: Site) -> None:
    """As ``release`` does not."""
    lease = site.redlock.acquire("k")

    site.redlock.carry_out(site.redlock.releasing(lease))

    assert holders(site.nodes) == FREE


def test_second_release_waits_for_no_slow_node(site: Site) -> None:
    """A majority that has no such lock has answered, too."""
    lease = site.redlock.acquire("k")
    site.redlock.release(lease)
    site.nodes.latency(0.01, 4)
    before = site.clock.monotonic()

    assert site.redlock.release(lease) == 0

    assert site.clock.monotonic() == before


def test_release_after_the_end_never_touches_a_successor(site: Site) -> None:
    """Nodes compare the token before they delete: the lock is another client's."""
    lease = site.redlock.acquire("k")
    site.clock.advance(TTL + 0.01)
    successor = site.rival.acquire("k")

    assert site.redlock.release(lease) == 0
    assert holders(site.nodes) == [successor.token] * 5


def test_release_of_a_lost_lease_keeps_it_lost(redlock: Redlock) -> None:
    """A release does not hide that the lease was lost."""
    lease = redlock.acquire("k")
    lease.state = LeaseState.LOST

    redlock.release(lease)

    assert lease.state is LeaseState.LOST


@pytest.mark.parametrize("granted", [3, 5])
def test_release_does_not_wait_for_slow_nodes(site: Site, granted: int) -> None:
    """They get the release all the same, also if they granted too late to count."""
    if granted == 3:
        site.nodes.freeze(0, 1)
    lease = site.redlock.acquire("k")
    assert lease.votes == granted
    site.nodes.freeze(0, 1)
    before = site.clock.monotonic()

    assert site.redlock.release(lease) == 3

    assert site.clock.monotonic() == before
    site.nodes.thaw()
    assert holders(site.nodes) == FREE


def test_release_with_keep_lets_the_lock_expire(site: Site) -> None:
    """``hold_at_least``: the lock is taken until then, and the lease is not valid."""
    lease = site.redlock.acquire("k")

    assert site.redlock.release(lease, keep=2.5) == 5

    assert ttls(site.nodes) == [2500] * 5
    assert not lease.is_valid()
    with pytest.raises(LockHeld):
        site.rival.acquire("k")
    site.clock.advance(2.501)
    assert site.rival.acquire("k").is_valid()


@pytest.mark.parametrize("keep", [0.0, -1.0, 0.0001])
def test_release_with_nothing_to_keep_deletes(site: Site, keep: float) -> None:
    """A keep of less than a millisecond deletes at once."""
    lease = site.redlock.acquire("k")

    site.redlock.release(lease, keep=keep)

    assert holders(site.nodes) == FREE


@pytest.mark.parametrize(("options", "ttl"), [({}, -2), ({"keep": 3.0}, 3000)])
def test_coroutine_releases_as_a_thread_does(
    site: Site, options: dict[str, float], ttl: int
) -> None:
    """``arelease`` hands its arguments on; nothing is kept by default."""
    lease = site.redlock.acquire("k")

    assert asyncio.run(site.redlock.arelease(lease, **options)) >= 3

    assert ttls(site.nodes) == [ttl] * 5


def test_second_release_by_a_coroutine_finds_nothing(site: Site) -> None:
    """It tells how many nodes held the lock until then."""
    lease = site.redlock.acquire("k")
    asyncio.run(site.redlock.arelease(lease))

    assert asyncio.run(site.redlock.arelease(lease)) == 0


def test_each_release_is_sent_again_to_the_nodes_that_may_hold_the_lock(
    site: Site,
) -> None:
    """It says since when: a node that was away before holds nothing of this lease."""
    limits = (Limit("call", 1, is_call=True), Limit("k", 2), Limit("k", 2, 60.0))
    queues = [site.redlock.keys.wait_queue("k")]
    site.clock.advance(5.0)
    lease = site.redlock.acquire("k", limits=limits)
    site.clock.advance(2.0)

    site.redlock.release(lease, keep=1.0)

    releases = [one for one in site.nodes.asked if one.script.name == "release"]
    assert [one.resend_since for one in releases] == [lease.started_at] * 3
    start = next(one.call[1] for one in releases if "@" in one.call[1][0])
    assert [*start] == ["redlock:lock:" + start[0].rpartition(":")[2], *queues]
    assert site.redlock.release_request("k", "x").resend_since == 0.0
    assert site.redlock.release_request("k", "x", since=7.0).resend_since == 7.0


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_attempt_that_fails_releases_since_it_began(
    site: Site, *, is_interrupted: bool
) -> None:
    """Also what it has taken for a start and for a call, and also after Ctrl-C."""
    limits = (Limit("call", 1, is_call=True), Limit("k", 1), Limit("k", 1, 60.0))

    def interrupt() -> None:
        raise KeyboardInterrupt

    site.clock.advance(5.0)
    began = site.clock.monotonic()
    if is_interrupted:
        site.nodes.latency(0.01)
        site.clock.at(0.005, interrupt)
    else:
        site.nodes.partition(0, 1, 2)

    with pytest.raises(KeyboardInterrupt if is_interrupted else QuorumUnreachable):
        site.redlock.acquire("k", limits=limits)

    first = next(one for one in site.nodes.asked if one.script.name == "release")
    assert first.resend_since == began
    names = first.call[1][:3]
    assert [name.rpartition(":")[2] for name in names] == ["call", "k", "k@@1"]
    site.nodes.heal()
    site.nodes.latency(0.0)
    site.clock.advance(1.0)
    assert all(
        node.memory.redis.get(name.encode()) is None
        for node in site.nodes.nodes
        for name in names
    )


def test_release_base_releases_any_attempt_of_an_execution(site: Site) -> None:
    """A process that outlives the holder knows the base and not the attempt."""
    base, another = new_base(), new_base()
    site.rival.acquire("k", base=base)

    assert site.redlock.release_base("k", another) == 0
    assert site.redlock.release_base("k", base[:-1]) == 0
    assert site.redlock.release_base("k", base) == 5
    assert holders(site.nodes) == FREE


# -- inspect -----------------------------------------------------------------------


def test_inspect_names_the_holder(site: Site) -> None:
    """Holder, votes and time, without changing anything."""
    lease = site.rival.acquire("k")
    site.clock.advance(4.0)

    inspection = site.redlock.inspect("k")

    assert inspection.holder is not None
    assert inspection.holder.token == lease.token
    assert (inspection.votes, inspection.ttl_left) == (5, 6.0)
    assert ttls(site.nodes) == [6000] * 5


def test_inspect_looks_at_several_keys_at_once(site: Site) -> None:
    """One of them has a holder, or none."""
    site.redlock.acquire("b")

    found = site.redlock.inspect(["b", "a"])

    assert (found.key, found.votes) == ("a\nb", 5)


@pytest.mark.parametrize(
    ("named_by", "holder", "ttl_left"),
    [((0, 1), "", 0.0), ((0, 1, 2), "other.1", 10.0)],
    ids=["minority", "majority"],
)
def test_inspect_names_a_holder_that_a_majority_names(
    site: Site, named_by: tuple[int, ...], holder: str, ttl_left: float
) -> None:
    """Two of five nodes are no holder, three are; their votes are counted."""
    hold(site.nodes, *named_by)

    inspection = site.redlock.inspect("k")

    assert (inspection.holder.token if inspection.holder else "") == holder
    assert (inspection.votes, inspection.ttl_left) == (len(named_by), ttl_left)


def test_inspect_refuses_a_key_that_no_lock_can_have(site: Site) -> None:
    """It would tell that no client holds it."""
    with pytest.raises(ConfigurationError, match="cannot be used"):
        site.redlock.inspect("")


def test_inspect_waits_for_all_nodes(site: Site) -> None:
    """Inspect does not stop at a majority."""
    site.redlock.acquire("k")
    site.nodes.latency(0.04, 4)

    assert site.redlock.inspect("k").votes == 5


def test_service_of_a_test_cannot_be_copied(site: Site) -> None:
    """The copy would have neither its clock nor its nodes."""
    with pytest.raises(TypeError, match=r"cannot be pickled .* Make one there[.]$"):
        copy.copy(site.redlock)


# -- ensure(network=True) --------------------------------------------------------------


def test_confirm_trusts_a_majority(site: Site) -> None:
    """Three of five nodes name the lease: it is valid."""
    lease = site.redlock.acquire("k")
    forget(site.nodes, 0)
    site.nodes.nodes[1].kill()

    lease.ensure(network=True)


@pytest.mark.parametrize("successor", ["", "other.1"])
def test_confirm_notices_that_nodes_lost_the_lock(site: Site, successor: str) -> None:
    """After a forced release, or a wipe, the clock says valid and the nodes say no."""
    lease = site.redlock.acquire("k")
    forget(site.nodes, 0, 1, 2)
    if successor:
        hold(site.nodes, 0, 1, 2, by=successor)

    lease.ensure()
    with pytest.raises(LockLost) as caught:
        lease.ensure(network=True)

    assert (caught.value.key, caught.value.fence) == ("k", lease.fence)


def test_confirm_counts_whether_silence_could_make_a_majority(site: Site) -> None:
    """Two yes, two no, one silent: unknown, and valid. One yes, three no: lost."""
    lease = site.redlock.acquire("k")
    site.nodes.freeze(0)
    forget(site.nodes, 3, 4)

    with pytest.raises(QuorumUnreachable, match=r"lease is valid for \d+\.\d s more\."):
        lease.ensure(network=True)

    forget(site.nodes, 2)
    with pytest.raises(LockLost):
        lease.ensure(network=True)


def test_confirm_does_not_pass_after_the_validity_has_ended(site: Site) -> None:
    """All nodes named the lease, but their answers came after its end."""
    lease = site.redlock.acquire("k")
    site.nodes.latency(0.04)
    site.clock.advance(lease.remaining() - 0.02)

    with pytest.raises(LockLost):
        lease.ensure(network=True)


def test_lock_of_redis_cannot_be_held_in_a_transaction(site: Site) -> None:
    """Its nodes are no database."""
    lease = site.redlock.acquire("k")

    with pytest.raises(ConfigurationError) as error:
        lease.ensure(object())

    assert str(error.value) == (
        "Node node-1:6379/0 is no database: `lease.ensure(connection)` needs a "
        "PostgreSQL in redlock_nodes. Use `lease.fence` instead."
    )


def test_check_asks_all_nodes_for_a_lock_that_no_other_client_wants(site: Site) -> None:
    """And leaves nothing, also on a node that was away."""
    site.nodes.latency(0.01, 4)

    reports = [site.redlock.check() for _ in range(2)]

    assert [report.ballot.answered for report in reports] == [5, 5]
    calls = [one.call for one in site.nodes.asked if one.script.name == "acquire"]
    keys = [keys[0].rpartition("check:")[2] for _, keys, _ in calls]
    assert len({*keys}) == 2
    assert [args[0].partition(".")[0] for _, _, args in calls] == keys
    assert [args[1] for _, _, args in calls] == ["", ""]  # it has no holder
    releases = [one for one in site.nodes.asked if one.script.name == "release"]
    assert [one.resend_since for one in releases] == [0.0, 0.0]


def test_store_that_cannot_be_prepared_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message says which, why, and that nothing was changed."""

    class Denied:
        @staticmethod
        def prepare(url: str, seconds: float) -> None:
            assert (url, seconds) == ("postgresql://user:secret@database/app", 1.0)
            message = "denies us the table"
            raise StoreError(message)

    monkeypatch.setattr(module, "store_of", lambda _: Denied)
    redlock = Redlock(["postgresql://user:secret@database/app"])

    with pytest.raises(RedlockError) as error:
        redlock.prepare()

    assert str(error.value) == (
        f"Node {redlock.addresses[0]} denies us the table. Nothing was changed."
    )
    assert "secret" not in str(error.value)
