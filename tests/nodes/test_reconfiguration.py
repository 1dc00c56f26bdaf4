"""Changes of the node list or of max_ttl while clients keep acquiring locks."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.redlock import Redlock
from celery_redlock.errors import (
    ConfigurationError,
    LockUnavailable,
    QuorumUnreachable,
    RedlockError,
)
from celery_redlock.operations.reconfigure import reconfigure

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from celery_redlock.devnodes import DevNodes

MAX_TTL = 1.0  # seconds: a reconfiguration waits for one of them and a bit
CLIENTS = 3


def service(urls: list[str], max_ttl: float = MAX_TTL) -> Redlock:
    """Return a client with these settings; slow machines get their time."""
    return Redlock(urls, ttl=MAX_TTL, max_ttl=max_ttl, node_timeout=0.2)


@dataclass
class Load:
    """Clients of both configurations that acquire one lock again and again."""

    redlocks: list[Redlock]
    key: str
    grants: list[tuple[float, float, float, int]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, redlock: Redlock) -> None:
        """Hold the lock for a moment, and note when it was asked for, had and left."""
        while not self.stop.is_set():
            began = SYSTEM_CLOCK.monotonic()
            try:
                lease = redlock.acquire(self.key)
            except LockUnavailable:
                self.stop.wait(0.005)
                continue
            had = SYSTEM_CLOCK.monotonic()
            self.stop.wait(0.002)
            # What was held for longer than its validity proves nothing.
            end = min(SYSTEM_CLOCK.monotonic(), lease.until)
            redlock.release(lease)
            self.grants.append((began, had, end, lease.fence))

    def __enter__(self) -> Self:
        self.threads = [
            threading.Thread(target=self.run, args=(redlock,))
            for redlock in self.redlocks
            for _ in range(CLIENTS)
        ]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def granted_since(self, instant: float) -> int:
        """Return how many grants were begun after this instant."""
        return sum(began > instant for began, _, _, _ in list(self.grants))


def assert_one_at_a_time_and_in_order(load: Load) -> None:
    """Assert that no two holds overlap, and that later requests have greater fences."""
    grants = sorted(load.grants, key=lambda grant: grant[1])
    for index, (_, had, end, fence) in enumerate(grants):
        for began, later_had, _, later_fence in grants[index + 1 : index + 20]:
            assert later_had >= end, "two holders at once"
            assert began < had or later_fence > fence, "a fence out of order"
    assert len({fence for _, _, _, fence in grants}) == len(grants)


@pytest.mark.parametrize(
    ("before", "after", "max_ttl"),
    [
        ([0, 1, 2], [0, 1, 3], MAX_TTL),
        ([0, 1, 2], [0, 1, 2, 3, 4], MAX_TTL),
        ([0, 1, 2], [3, 4, 2], MAX_TTL),
        ([0, 1, 2], [0, 1, 2], 2 * MAX_TTL),
    ],
    ids=["one replaced", "three to five", "a majority replaced", "max_ttl doubled"],
)
def test_reconfiguration_under_load_never_lets_two_in(
    start_nodes: Callable[..., DevNodes],
    key: str,
    before: list[int],
    after: list[int],
    max_ttl: float,
) -> None:
    """No holds overlap, fences stay in order, and the new clients continue."""
    urls = start_nodes(5, initialize=False).urls
    old = service([urls[index] for index in before])
    new = service([urls[index] for index in after], max_ttl)
    old.initialize()

    with Load([old, new], key) as load:
        until_granted(load, since=0.0)
        steps: list[str] = []
        reconfigure(old, new, on_step=steps.append)
        until_granted(load, since=SYSTEM_CLOCK.monotonic())

    assert_one_at_a_time_and_in_order(load)
    assert "vote for the new configuration" in steps[-1]
    old.close()
    new.close()


def until_granted(load: Load, *, since: float) -> None:
    """Wait until some client was granted the lock."""
    deadline = SYSTEM_CLOCK.monotonic() + 20
    while not load.granted_since(since):
        assert SYSTEM_CLOCK.monotonic() < deadline, "no client was granted the lock"
        load.stop.wait(0.02)


def test_client_with_the_old_settings_is_told_what_to_do(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """The error names the nodes' present configuration and the command."""
    urls = start_nodes(3, initialize=False).urls
    old, new = service(urls), service(urls, 2 * MAX_TTL)
    old.initialize()
    reconfigure(old, new)

    with pytest.raises(QuorumUnreachable, match=r"max_ttl 2 s.*redlock reconfigure"):
        old.acquire(key)
    old.close()
    new.close()


def test_reconfiguration_that_was_interrupted_is_resumed(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """The wait continues meanwhile, and a second run finishes the first one's work."""
    nodes = start_nodes(5, initialize=False)
    old, new = service(nodes.urls[:3]), service(nodes.urls)
    old.initialize()

    def kill_one(sentence: str) -> None:
        if "are closed" in sentence:
            nodes.nodes[4].kill()

    with pytest.raises(RedlockError, match="run it again"):
        reconfigure(old, new, on_step=kill_one, patience=0.5)
    with pytest.raises(QuorumUnreachable):
        old.acquire(key)

    nodes.nodes[4].restart()
    reconfigure(old, new)
    lease = new.acquire(key)
    assert new.release(lease) >= new.quorum
    old.close()
    new.close()


def test_reconfiguration_looks_before_it_closes(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """If it cannot be finished, nothing is changed, and locks are granted as before."""
    nodes = start_nodes(4, initialize=False)
    old, new = service(nodes.urls[:3]), service(nodes.urls)
    old.initialize()
    nodes.nodes[3].kill()

    with pytest.raises(RedlockError, match=r"must be up: .*Nothing was changed"):
        reconfigure(old, new)

    old.release(old.acquire(key))
    old.close()
    new.close()


def test_node_of_another_deployment_is_not_moved(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Its locks would be forgotten. The error has the difference."""
    nodes = start_nodes(6, initialize=False)
    old, new = service(nodes.urls[:3]), service(nodes.urls[:4])
    theirs = service(nodes.urls[3:], 2 * MAX_TTL)
    old.initialize()
    theirs.initialize()

    with pytest.raises(RedlockError, match=r"max_ttl 2 s.*Nothing was changed"):
        reconfigure(old, new)

    old.release(old.acquire(key))
    theirs.release(theirs.acquire(key))
    for redlock in (old, new, theirs):
        redlock.close()


def test_second_run_lifts_no_quarantine(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A node that restarts after the move waits, also when the move is run once more.

    B holds the lock on nodes 4 and 5; 6 is frozen. 5 restarts empty. If a second run
    admitted it at once, 5 and 6 would grant the lock to C.
    """
    nodes = start_nodes(6, initialize=False)
    old, new = service(nodes.urls[:3]), service(nodes.urls[3:])
    rival = service(nodes.urls[3:])
    old.initialize()
    reconfigure(old, new)
    nodes.nodes[5].pause()
    lease = new.acquire(key)
    nodes.nodes[4].restart()
    nodes.nodes[5].resume()

    finished: list[str] = []
    again = threading.Thread(
        target=reconfigure, args=(old, new), kwargs={"on_step": finished.append}
    )
    again.start()
    while lease.is_valid() and again.is_alive():
        with pytest.raises(LockUnavailable):
            rival.acquire(key)
        new.extend(lease)
    again.join()

    assert lease.is_valid(), "the lease ended before the second run: it shows nothing"
    assert "vote for the new configuration" in finished[-1]
    with pytest.raises(LockUnavailable):
        rival.acquire(key)
    for redlock in (old, new, rival):
        redlock.close()


def test_closed_nodes_that_fall_silent_are_waited_for(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """They may have lost their memory, and then their locks have not ended."""
    nodes = start_nodes(6, initialize=False)
    old, new = service(nodes.urls[:3]), service(nodes.urls[3:])
    old.initialize()

    def silence(sentence: str) -> None:
        if "are closed" in sentence:
            for node in nodes.nodes[:2]:
                node.kill()

    with pytest.raises(RedlockError, match="could be closed"):
        reconfigure(old, new, on_step=silence, patience=0.5)

    assert not any(
        node.command("HGET", "redlock:meta", "config") == new.guard.config
        for node in nodes.nodes[3:]
    )
    old.close()
    new.close()


def test_reconfiguration_is_taken_back(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Until the first node is opened, --abort leads back, with all fences."""
    nodes = start_nodes(5, initialize=False)
    old, new = service(nodes.urls[:3]), service(nodes.urls)
    old.initialize()
    before = old.acquire(key)
    old.release(before)

    def kill_one(sentence: str) -> None:
        if "are closed" in sentence:
            nodes.nodes[4].kill()

    with pytest.raises(RedlockError, match="--abort"):
        reconfigure(old, new, on_step=kill_one, patience=0.5)

    reconfigure(old, new, abort=True)

    lease = old.acquire(key)
    assert lease.fence > before.fence
    old.release(lease)
    with pytest.raises(QuorumUnreachable):
        new.acquire(key)
    old.close()
    new.close()


def test_finished_reconfiguration_is_not_taken_back(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """The nodes vote for the new configuration, and go on with it."""
    nodes = start_nodes(3, initialize=False)
    old, new = service(nodes.urls), service(nodes.urls, 2 * MAX_TTL)
    old.initialize()
    reconfigure(old, new)

    with pytest.raises(RedlockError, match="Nothing was changed"):
        reconfigure(old, new, abort=True)

    new.release(new.acquire(key))
    old.close()
    new.close()


def test_reconfiguration_without_enough_witnesses_rests_on_clocks(
    start_nodes: Callable[..., DevNodes],
    key: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If too few old nodes know the fences, a warning says that clocks decide."""
    nodes = start_nodes(3, initialize=False)
    old, new = service(nodes.urls), service(nodes.urls, 2 * MAX_TTL)
    old.initialize()
    for node in nodes.nodes[:2]:
        node.command("FLUSHALL")

    with caplog.at_level(logging.WARNING):
        reconfigure(old, new, patience=1.0)

    assert "depends on clocks" in caplog.text
    new.release(new.acquire(key))
    old.close()
    new.close()


def test_reconfiguration_to_the_same_is_refused() -> None:
    """Without a difference there is nothing to do, and the change is refused."""
    urls = ["redis://a:1", "redis://b:1"]

    with pytest.raises(ConfigurationError, match="Nothing to do"):
        reconfigure(service(urls), service(urls))


def test_reconfiguration_without_the_guard_is_refused() -> None:
    """The nodes do not know their configuration; the error names the manual steps."""
    urls = ["redis://a:1", "redis://b:1"]
    unguarded = Redlock(urls, restart_guard=False)

    with pytest.raises(ConfigurationError, match="restart guard is off"):
        reconfigure(unguarded, service(urls[:1]))
