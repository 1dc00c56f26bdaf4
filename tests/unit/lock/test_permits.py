"""Permits: how many holders a key has at once, and how many starts in a period."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_redlock import ConfigurationError
from celery_redlock.errors import LockHeld, LockLost
from celery_redlock.locking import held_lease, lock
from celery_redlock.locks.lease import Holder, drift_of
from celery_redlock.locks.limits import (
    START_WITHIN,
    Limit,
    Limits,
    rate_of,
    wanted,
    with_copies,
)
from celery_redlock.locks.redlock import Redlock
from celery_redlock.scripts import RELEASE
from celery_redlock.scripts.keys import stripe_of
from celery_redlock.testing import FakeNodes
from celery_redlock.wire.requests import ScriptRequest
from tests.unit.lock.support import Site, args_of, asked, ttls

THREE = (Limit("imports", 3),)
RATE = (Limit("mail", 3), Limit("mail", 3, 60.0))


@pytest.fixture
def redlock(nodes: FakeNodes) -> Redlock:
    """Give a service on three nodes in memory."""
    return nodes.redlock()


def test_names_begin_with_that_of_the_lock() -> None:
    """So a client without a limit excludes one of those that have one."""
    assert [*Limit("imports", 3).names()] == ["imports", "imports##2", "imports##3"]
    assert [*Limit("mail", 2, 60.0).names()] == ["mail@@1", "mail@@2"]


@pytest.mark.parametrize(
    ("limit", "name", "number"),
    [
        (Limit("imports", 3), "imports", 1),
        (Limit("imports", 3), "imports##3", 3),
        (Limit("imports", 3), "imports##7", 7),
        (Limit("imports", 3), "imports##1", 0),
        (Limit("imports", 3), "imports##03", 0),
        (Limit("imports", 3), "imports@@3", 0),
        (Limit("imports", 3), "imports#3", 0),
        (Limit("imports", 3), "imports##", 0),
        (Limit("imports", 3), "imports##x", 0),
        (Limit("7", 3), "7", 1),
        (Limit("7", 3), "8", 0),
        (Limit("mail", 3, 60.0), "mail", 0),
        (Limit("mail", 3, 60.0), "mail@@1", 1),
    ],
)
def test_number_is_read_from_a_name(limit: Limit, name: str, number: int) -> None:
    """A name has one number, also one above the limit, which another client has."""
    assert limit.number(name) == number


def test_value_of_a_permit_says_what_it_is_of(redlock: Redlock) -> None:
    """A name alone does not: a plain key may look like that of a permit."""
    both = (Limit("imports", 3), Limit("tenant:1", 1), Limit("imports", 3, 60.0))
    lease = redlock.acquire(["imports", "tenant:1"], limits=both)
    redlock.acquire("pr#17")
    assert lease.choice
    ((_, start),) = lease.choice.starts

    held, kept, plain = (
        redlock.inspect(key).holder for key in (lease.keys[0], start, "pr#17")
    )

    assert held
    assert kept
    assert plain
    limit, number = held.permit(lease.keys[0]) or (None, 0)
    assert (limit, [*both[0].names()][number - 1]) == (both[0], lease.keys[0])
    assert held.permit("tenant:1") is None
    assert held.whole_key(lease.keys[0]) == lease.key
    limit, number = kept.permit(start) or (None, 0)
    assert (limit, f"imports@@{number}") == (both[2], start)
    assert kept.whole_key(start) == start
    assert plain.permit("pr#17") is None


def test_key_has_as_many_holders_as_permits(redlock: Redlock) -> None:
    """Each has a name of its own; one more is refused."""
    leases = [redlock.acquire("imports", limits=THREE) for _ in range(3)]

    assert sorted(lease.key for lease in leases) == [
        "imports",
        "imports##2",
        "imports##3",
    ]
    with pytest.raises(
        LockHeld, match="All 3 permits of 'imports' are in use"
    ) as error:
        redlock.acquire("imports", limits=THREE)
    assert (error.value.key, error.value.held_key) == ("imports", "imports")
    assert error.value.limit == THREE[0]


def test_fences_of_a_permit_grow(redlock: Redlock) -> None:
    """It is a lock of its own: the fences of two permits say nothing of each other."""
    leases = []
    for _ in range(5):
        leases.append(redlock.acquire("imports", limits=THREE))
        redlock.release(leases[-1])

    assert len({lease.key for lease in leases}) == 1
    fences = [lease.fence for lease in leases]
    assert fences == sorted(set(fences))


def test_majority_tells_which_permits_are_in_use(site: Site) -> None:
    """The others are not waited for; without a majority it is not known."""
    lease = site.redlock.acquire("imports", limits=THREE)
    site.nodes.freeze(3, 4)
    before = site.clock.monotonic()

    in_use = site.redlock.permits_in_use(THREE)

    assert in_use
    (occupancy,) = in_use
    assert occupancy.held == {THREE[0].number(lease.key)}
    assert site.clock.monotonic() == before
    site.nodes.freeze(2)
    assert site.redlock.permits_in_use(THREE) is None


def test_permit_waits_for_no_slow_node(site: Site) -> None:
    """A majority grants it."""
    site.nodes.latency(0.01, 4)
    before = site.clock.monotonic()

    assert site.redlock.acquire("imports", limits=THREE).votes == 4

    assert site.clock.monotonic() == before


def test_refusal_costs_one_request(site: Site) -> None:
    """A node tells which permits are in use, and not only about one of them."""
    for _ in range(3):
        site.redlock.acquire("imports", limits=THREE)
    site.nodes.asked.clear()

    with pytest.raises(LockHeld):
        site.redlock.acquire("imports", limits=THREE)

    assert asked(site.nodes).count("acquire_permits") == 1


def test_permit_that_is_free_is_found_at_the_second_try(site: Site) -> None:
    """The answer tells about all permits, and leads to the last free one of 100."""
    many = (Limit("imports", 100),)
    others = site.nodes.redlock()
    leases = [others.acquire("imports", limits=many) for _ in range(100)]
    others.release(leases[50])
    site.nodes.asked.clear()

    lease = site.redlock.acquire("imports", limits=many)

    assert lease.key == leases[50].key
    assert asked(site.nodes).count("acquire_permits") <= 2


@pytest.mark.parametrize("tenant", ["a-tenant", "the-tenant"])
def test_refusal_names_the_holder_of_the_key_that_is_held(
    site: Site, tenant: str
) -> None:
    """And not that of a permit of another key, of which others are free."""
    others = site.nodes.redlock()
    others.acquire(tenant, holder=Holder.here(task_id="of-the-tenant"))
    (imports,) = THREE
    lease = others.acquire(
        "imports", holder=Holder.here(task_id="of-imports"), limits=THREE
    )
    site.redlock.permits.give_back(imports, [*imports.names()].index(lease.key) + 1)
    text, limits = wanted({tenant: 1, "imports": 3})

    with pytest.raises(LockHeld) as error:
        site.redlock.acquire(text.split("\n"), limits=limits)

    assert (error.value.held_key, error.value.holder.task_id) == (
        tenant,
        "of-the-tenant",
    )
    assert "[of-the-tenant]" in str(error.value)
    assert error.value.retry_after == pytest.approx(30, abs=1)


def test_permit_that_a_minority_granted_is_released(site: Site) -> None:
    """Also where its refusal led to another permit: no node keeps the first one."""
    two = Limit("imports", 2)
    other = site.nodes.redlock().acquire("imports", limits=(two,))
    held = site.nodes.nodes[2].memory.redis
    held.delete(f"redlock:lock:{other.key}".encode())
    site.redlock.permits.give_back(two, [*two.names()].index(other.key) + 1)

    lease = site.redlock.acquire("imports", limits=(two,))

    assert lease.key != other.key
    assert held.get(f"redlock:lock:{other.key}".encode()) is None


def test_released_permit_is_taken_again(site: Site) -> None:
    """The process remembers it, so a cycle without contention costs one request."""
    lease = site.redlock.acquire("imports", limits=THREE)
    for _ in range(20):
        site.redlock.release(lease)
        site.nodes.asked.clear()
        again = site.redlock.acquire("imports", limits=THREE)
        assert again.key == lease.key
        assert asked(site.nodes).count("acquire_permits") == 1
        lease = again


def test_lock_without_a_limit_takes_the_first_permit(redlock: Redlock) -> None:
    """While a deploy introduces a limit, at most the greater of the two hold it."""
    plain = redlock.acquire("imports")

    leases = [redlock.acquire("imports", limits=THREE) for _ in range(2)]

    assert plain.key not in {lease.key for lease in leases}
    with pytest.raises(LockHeld):
        redlock.acquire("imports", limits=THREE)


def test_lower_limit_holds_beside_a_higher_one(redlock: Redlock) -> None:
    """A client with limit 2 has the first two permits to choose from."""
    for _ in range(3):
        redlock.acquire("imports", limits=THREE)

    with pytest.raises(LockHeld, match="All 2 permits"):
        redlock.acquire("imports", limits=(Limit("imports", 2),))


def test_permits_of_several_keys_are_taken_together(redlock: Redlock) -> None:
    """One per tenant and three in all: a refusal by one takes none of the other."""
    acme = (*THREE, Limit("tenant:acme", 1))
    lease = redlock.acquire(["imports", "tenant:acme"], limits=acme)

    with pytest.raises(LockHeld, match="'tenant:acme' is held") as error:
        redlock.acquire(["imports", "tenant:acme"], limits=acme)

    assert error.value.held_key == "tenant:acme"
    (occupancy, _) = redlock.permits_in_use(acme) or []
    assert len(occupancy.held) == 1
    redlock.release(lease)
    assert redlock.acquire(["imports", "tenant:acme"], limits=acme).is_valid()


COPIES = with_copies(THREE, "id-1")


def test_copies_of_a_call_have_one_permit(site: Site) -> None:
    """A refusal names the copy first, also where all permits are in use."""
    first = site.redlock.acquire("imports", limits=COPIES)
    second = site.redlock.acquire("imports", limits=with_copies(THREE, "id-2"))

    for permits in range(2):
        with pytest.raises(LockHeld, match="A copy of the call id-1") as refused:
            site.redlock.acquire("imports", limits=COPIES)
        assert refused.value.limit == COPIES[0]
        assert refused.value.held_key is None
        if not permits:
            site.redlock.acquire("imports", limits=THREE)

    assert {first.wanted, second.wanted} == {"imports"}
    fences = args_of(site.nodes, "acquire_permits")[0][6:8]
    assert fences == [stripe_of(first.key)] * 2  # no fence is counted for the call
    assert first.key != second.key
    site.redlock.release(first)
    assert site.redlock.acquire("imports", limits=COPIES).is_valid()


def test_lock_of_a_call_is_renewed_restored_and_lost_with_its_permit(
    site: Site,
) -> None:
    """It is one of the locks of the lease, and counts with the fences of its permit."""
    lease = site.redlock.acquire("imports", limits=COPIES)
    call = site.redlock.keys.call("id-1").encode()
    for node in site.nodes.nodes:
        node.memory.redis.delete(call)

    site.clock.advance(site.redlock.timing.ttl / 2)
    assert site.redlock.extend(lease)
    assert args_of(site.nodes, "restore")[-1][5:] == [stripe_of(lease.key)] * 2
    site.clock.advance(site.redlock.timing.ttl / 2)
    with pytest.raises(LockHeld, match="A copy of the call"):
        site.redlock.acquire("imports", limits=COPIES)

    site.clock.advance(site.redlock.timing.ttl)
    assert site.redlock.acquire("imports", limits=COPIES).is_valid()
    assert not site.redlock.extend(lease)


def test_kept_permit_keeps_no_retry_out(redlock: Redlock) -> None:
    """``hold_at_least`` is for other calls: the retry of this one may run."""
    lease = redlock.acquire("imports", limits=COPIES)

    redlock.release(lease, keep=10)

    assert redlock.inspect(lease.key).holder
    assert redlock.acquire("imports", limits=COPIES).key != lease.key


@pytest.mark.parametrize("limits", [THREE, COPIES])
def test_child_that_is_gone_leaves_no_permit(redlock: Redlock, limits: Limits) -> None:
    """Its parent knows neither the number nor the token, but the base."""
    lease = redlock.acquire("imports", limits=limits)

    assert redlock.release_base("imports", lease.token.partition(".")[0], limits)

    found = redlock.permits_in_use(limits) or []
    assert [occupancy.held for occupancy in found] == [set()] * len(limits)


# -- starts ----------------------------------------------------------------------------


def test_starts_in_a_period_are_limited(site: Site) -> None:
    """Also of runs that have ended: a permit for a start is kept for the period."""
    for _ in range(3):
        site.redlock.release(site.redlock.acquire("mail", limits=RATE))

    with pytest.raises(LockHeld, match="'mail' has had 3 starts within 60 s") as error:
        site.redlock.acquire("mail", limits=RATE)

    assert error.value.retry_after == pytest.approx(60.0, rel=0.02)
    assert len(error.value.due) == 3
    site.clock.advance(error.value.retry_after or 0)
    assert site.redlock.acquire("mail", limits=RATE).is_valid()


def test_permit_for_a_start_outlasts_its_period_by_the_drift(site: Site) -> None:
    """Clocks of nodes may be fast by as much as for a ttl."""
    starts = (Limit("mail", 9), Limit("mail", 1, 60.0))
    lease = site.redlock.carry_out(site.redlock.acquiring("mail", limits=starts))
    assert ttls(site.nodes, "mail@@1") == [
        round(1000 * (at_most + drift_of(at_most)))
        for at_most in [site.redlock.timing.ttl + START_WITHIN + 60.0] * 5
    ]
    lease.begin()
    site.clock.advance(20.0)

    site.redlock.release(lease)

    left = round(1000 * (40.0 + drift_of(60.0)))
    assert ttls(site.nodes, "mail@@1") == [left] * 5


def test_run_of_more_than_a_period_leaves_no_permit(site: Site) -> None:
    """It ends when the start is a period ago, also while the run goes on."""
    limits = (Limit("mail", 9), Limit("mail", 3, 60.0))
    leases = [site.redlock.acquire("mail", limits=limits) for _ in range(3)]
    for _ in range(3):
        site.clock.advance(20.0)
        assert all(site.redlock.extend(lease) for lease in leases)
    with pytest.raises(LockHeld, match="starts within"):
        site.redlock.acquire("mail", limits=limits)
    site.clock.advance(drift_of(60.0) + 0.001)

    assert site.redlock.acquire("mail", limits=limits).is_valid()


def test_killed_run_has_had_its_start(site: Site) -> None:
    """The permit ends by itself, and not before the period has passed."""
    leases = [site.redlock.acquire("mail", limits=RATE) for _ in range(3)]
    for lease in leases:
        site.redlock.release_base("mail", lease.token.partition(".")[0], RATE)

    site.clock.advance(60.0)
    with pytest.raises(LockHeld, match="starts within"):
        site.redlock.acquire("mail", limits=RATE)

    site.clock.advance(drift_of(60.0) + 0.001)
    assert site.redlock.acquire("mail", limits=RATE).is_valid()


def test_work_that_did_not_begin_is_no_start(redlock: Redlock) -> None:
    """A caller of steps says when it begins; before that nothing is kept."""
    for _ in range(4):
        lease = redlock.carry_out(redlock.acquiring("mail", limits=RATE))
        redlock.release(lease)

    assert redlock.acquire("mail", limits=RATE).is_valid()


def test_work_that_begins_too_late_does_not_begin(site: Site) -> None:
    """The permit could end before a period has passed since the start."""
    lease = site.redlock.carry_out(site.redlock.acquiring("mail", limits=RATE))
    site.clock.advance(lease.ttl + START_WITHIN + 0.1)

    with pytest.raises(LockLost):
        lease.begin()


def test_acquire_that_is_interrupted_as_it_begins_leaves_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes were just told of the start."""
    send = site.nodes.send

    def interrupted(request: ScriptRequest) -> None:
        send(request)
        script, _, args = request.call
        if script is RELEASE and args[-1]:  # which is not to be deleted
            raise KeyboardInterrupt

    monkeypatch.setattr(site.nodes, "send", interrupted)

    limits = (Limit("mail", 1), Limit("mail", 1, 60.0))
    began = site.clock.monotonic()
    with pytest.raises(KeyboardInterrupt):
        site.redlock.acquire("mail", limits=limits)

    assert site.nodes.asked[-1].resend_since == began
    assert ttls(site.nodes, "mail") == ttls(site.nodes, "mail@@1") == [-2] * 5


# -- re-entrance -----------------------------------------------------------------------


def test_execution_that_has_a_permit_takes_no_second_one(redlock: Redlock) -> None:
    """But a permit is not the whole lock."""
    with lock(redlock, "imports", limit=3) as lease:
        with lock(redlock, "imports", limit=3) as inner:
            assert inner is lease
        assert held_lease(redlock, "imports") is None
        assert lease.covers("imports")


# -- what is asked for -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked_for", "text", "limits"),
    [
        (("a",), "a", ()),
        ((["b", "a"],), "a\nb", ()),
        (("a", 1), "a", ()),
        (("a", 5), "a", (Limit("a", 5),)),
        (({"b": 1, "a": 5},), "a\nb", (Limit("a", 5), Limit("b", 1))),
        (("a", None, "5/s"), "a", (Limit("a", 5), Limit("a", 5, 1.0))),
        (("a", 2, "5/s"), "a", (Limit("a", 2), Limit("a", 5, 1.0))),
        ((["a"], None, "5/s"), "a", (Limit("a", 5), Limit("a", 5, 1.0))),
        (
            (["a", "b"], None, "5/s"),
            "a\nb",
            (Limit("a", 1), Limit("b", 1), Limit("a", 5, 1.0), Limit("b", 5, 1.0)),
        ),
    ],
)
def test_limits_are_one_for_each_key_and_one_for_each_rate(
    asked_for: Any, text: str, limits: Limits
) -> None:
    """A plain lock has none."""
    assert wanted(*asked_for) == (text, limits)


@pytest.mark.parametrize("keys", [["a", "b"], {"a": 1, "b": 2}, {"a": 1}])
def test_limit_beside_several_keys_is_refused(keys: Any) -> None:
    """Each of them has its own."""
    with pytest.raises(ConfigurationError, match="limit of each of several keys"):
        wanted(keys, 5)


def test_limit_of_a_key_is_named_in_the_error() -> None:
    """There may be many."""
    with pytest.raises(ConfigurationError, match="The limit of 'b' is 0"):
        wanted({"a": 1, "b": 0})


# -- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "starts", "period"),
    [
        ("10/m", 10, 60.0),
        ("1/s", 1, 1.0),
        ("5 / h", 5, 3600.0),
        ("100/d", 100, 86400.0),
        ((3, 5), 3, 5.0),
        ((3, timedelta(minutes=5)), 3, 300.0),
    ],
)
def test_rate_is_read(value: Any, starts: int, period: float) -> None:
    """As a text with a unit, or as a number and a period."""
    assert rate_of(value) == (starts, period)


@pytest.mark.parametrize("key", ["imports#2", "imports@1"])
@pytest.mark.parametrize("limits", [THREE, (THREE[0], Limit("imports", 3, 60.0))])
def test_no_permit_has_the_name_of_another_key(
    redlock: Redlock, limits: tuple[Limit, ...], key: str
) -> None:
    """The key of a pull request, such as `imports#2`, is free beside all permits."""
    for _ in range(3):
        redlock.acquire("imports", limits=limits)

    assert redlock.acquire(key).key == key


@pytest.mark.parametrize("key", ["imports##2", "imports@@1", "imports##0000"])
def test_key_that_looks_like_a_permit_is_refused(redlock: Redlock, key: str) -> None:
    """So no program takes a permit of others with a key of its own."""
    for keys in (key, ["a", key]):
        with pytest.raises(ConfigurationError, match="the name of a permit"):
            redlock.acquire(keys)
    assert redlock.inspect(key).holder is None
