"""Claims in a view: a publisher follows the members of the deployment, as a lock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_redlock.errors import QuorumUnreachable
from celery_redlock.line.claims import Claims, ExistingJob
from celery_redlock.locks.lease import Holder
from celery_redlock.locks.limits import Limit
from celery_redlock.locks.redlock import Redlock
from celery_redlock.scripts.keys import key_of
from celery_redlock.testing import FakeNodes
from tests.unit.lock.support import Site, asked, outlast_quarantine, restart

OVER = 65.0  # seconds: more than a quarantine


def take(redlock: Redlock, job: str = "job-1") -> ExistingJob | None:
    """Claim the call ``k`` for a job."""
    holder = Holder("", task="t", task_id=job, host="h", pid=1)
    return Claims(redlock).take("k", holder, at_lock=False, at_cooldown=False)


def claimed(nodes: FakeNodes) -> list[int]:
    """Return on which nodes the call is claimed, with the ttl in seconds."""
    found = [node.memory.redis.pttl(b"redlock:claim:k") for node in nodes.nodes]
    return [round(left / 1000) for left in found]


def test_new_publisher_learns_the_view_with_one_more_request(nodes: FakeNodes) -> None:
    """The nodes refuse the first claim, and the refusal has their view."""
    other = nodes.another_client()
    client = other.redlock()
    learnt = client.guard.view
    client.guard.view, client.guard.config = None, str(client.guard.configuration)

    assert take(client) is None

    assert asked(other) == ["claim", "claim"]
    assert client.guard.view == learnt
    assert claimed(nodes) == [10] * 5


def test_publisher_follows_a_replacement(site: Site) -> None:
    """It claims in the view that has the new member, and nothing in the old one."""
    publisher = site.nodes.another_client().redlock()
    outlast_quarantine(site, 0)
    site.redlock.check()
    assert publisher.guard.view != site.redlock.guard.view

    assert take(publisher) is None

    assert publisher.guard.view == site.redlock.guard.view
    assert claimed(site.nodes) == [10] * 5


def test_publisher_brings_restarted_nodes_back(site: Site) -> None:
    """A process that only publishes does what those that lock do."""
    restart(site.nodes, 0, 1, 2)
    with pytest.raises(QuorumUnreachable, match="is in quarantine"):
        take(site.redlock)
    assert all(left <= 0 for left in claimed(site.nodes))
    site.clock.advance(OVER)

    assert take(site.redlock) is None


def test_publisher_with_other_settings_is_told_the_difference(site: Site) -> None:
    """It claims nothing; the message says what to set."""
    differing = site.nodes.another_client().redlock(max_ttl=30.0, ttl=20.0)

    with pytest.raises(QuorumUnreachable, match="Set redlock_max_ttl = 60, or"):
        take(differing)

    assert all(left <= 0 for left in claimed(site.nodes))
    assert take(site.redlock) is None


def test_claim_is_kept_in_the_view_of_the_nodes_only(site: Site) -> None:
    """Where it is refused, the claim ends by itself, soon."""
    assert take(site.redlock) is None
    view = site.redlock.guard.view
    assert view is not None
    site.redlock.guard.use(replace(view, epoch=view.epoch + 1))

    Claims(site.redlock).keep("k", "job-1", 600)
    assert claimed(site.nodes) == [10] * 5

    site.redlock.guard.use(view)
    Claims(site.redlock).keep("k", "job-1", 600)
    assert claimed(site.nodes) == [600] * 5


@pytest.mark.parametrize("keys", [["k"], ["a", "b"]], ids=["one", "several"])
def test_running_call_with_a_rate_is_the_same_call(
    redlock: Redlock, keys: list[str]
) -> None:
    """Its lock names the limits beside its keys, by which the call is known."""
    limits = (*(Limit(key, 1) for key in keys), *(Limit(key, 9, 60.0) for key in keys))
    running = Holder("", task="t", task_id="job-1", host="h", pid=1)
    redlock.acquire(keys, holder=running, limits=limits)
    job = Holder("", task="t", task_id="job-2", host="h", pid=1)

    found = Claims(redlock).take(key_of(keys), job, at_lock=True, at_cooldown=False)

    assert found
    assert (found.phase, found.holder.task_id) == ("running", "job-1")


def test_claim_outlives_the_release_of_an_earlier_try(site: Site) -> None:
    """The votes were split, and two connections broke before that release arrived."""
    nodes, late_ms = site.nodes, round(1000 * site.redlock.timing.node_timeout)
    for index in (0, 1, 4):
        other = f"job-{index}\n0\nt\njob-{index}\nh\n1\n0\nqueued".encode()
        nodes.nodes[index].memory.redis.set(b"redlock:claim:k", other, px=late_ms + 1)
    nodes.mute(2, 3)

    def come_back() -> None:
        nodes.heal(2, 3)
        for connection in nodes._connections[2:4]:  # noqa: SLF001  (no test did before)
            connection.break_off("closed the connection")

    site.clock.at((late_ms + 1) / 1000, come_back)
    assert take(site.redlock) is None
    for _ in range(4):  # a release that has to arrive is sent twice, 1 s apart
        site.clock.advance(0.5)
        site.redlock.transport.drain()

    assert all(left > 0 for left in claimed(nodes))


@pytest.mark.parametrize("released_on", [0, 4])
def test_call_runs_as_soon_as_one_node_says_so(site: Site, released_on: int) -> None:
    """Its claim ends when it begins, and the nodes hear of it one after the other."""
    job = Holder.here(task="t", task_id="job-1", started=1.0)
    claims = Claims(site.redlock)
    claims.take("k", job, at_lock=True, at_cooldown=False)
    site.redlock.acquire("k", holder=job)
    late = replace(job, task_id="job-2")
    site.nodes.nodes[released_on].memory.redis.delete(b"redlock:claim:k")

    here = claims.take("k", late, at_lock=True, at_cooldown=False)

    assert here is not None
    assert (here.holder.task_id, here.phase) == ("job-1", "running")
