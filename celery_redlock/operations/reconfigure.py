"""Changes the list of nodes, or max_ttl, without two holders and without old fences.

::

    close old nodes ──► wait ──► read their fences ──► open the new nodes
    (N − q + 1 of them:   (the greater   (from N − q + 1)    (with those fences)
     no old majority is    quarantine)
     left, so nothing is
     granted or renewed)

While nodes are closed, no client gets a lock, and no lease is renewed: leases expire,
or are released, within their ttl. A closed node says so to clients of either
configuration. Every step can be repeated. An interrupted reconfiguration is resumed by
starting it again: the wait is a key on the closed nodes and goes on meanwhile.

Update the settings of all clients when it is done, not before: if a majority of the
nodes is new, these nodes do not know about the old ones. Then shut down the nodes that
were removed: clients with the old settings could use them again once they have been
wiped.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_redlock.core.quorum import Ballot, VoteKind
from celery_redlock.core.restart_guard import greatest
from celery_redlock.core.scripts import CLOSE, COUNTERS, OPEN
from celery_redlock.errors import ConfigurationError, RedlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.core.redlock import Redlock

__all__ = ["reconfigure"]

log = logging.getLogger(__name__)

_PAUSE = 0.5  # seconds between two tries of a step
_MARGIN = 0.01  # seconds, for the rounding of milliseconds


def reconfigure(
    old: Redlock,
    new: Redlock,
    *,
    on_step: Callable[[str], None] = lambda _: None,
    patience: float = 30.0,
) -> None:
    """Move a deployment from one configuration to another. Blocks until it is done.

    Args:
        old: A lock service with the present nodes and max_ttl.
        new: A lock service with the future nodes and max_ttl.
        on_step: Called with a sentence for the operator after each step.
        patience: Seconds to keep trying to reach enough nodes in each step.

    Raises:
        ConfigurationError: Nothing would change, prefixes differ, or the restart
            guard is off. Nothing was changed.
        RedlockError: Not enough nodes could be closed, read or opened. Run it
            again with the same arguments: it goes on where it stopped.
    """
    if not (old.guard.enabled and new.guard.enabled):
        raise ConfigurationError(
            "The restart guard is off, so nodes do not know their configuration. Stop "
            "all workers, change the settings, wait for one max_ttl, start them again."
        )
    if old.guard.config == new.guard.config:
        raise ConfigurationError(
            f"Both configurations are the same ({new.guard.config}). Nothing to do."
        )
    if old.keys.prefix != new.keys.prefix:
        raise ConfigurationError(
            "A reconfiguration cannot change redlock_prefix: a new prefix is a new "
            "deployment. Stop all workers, and start it with `redlock init`."
        )
    _Reconfiguration(old, new, on_step, patience).run()


class _Reconfiguration:
    """One reconfiguration in progress."""

    def __init__(
        self,
        old: Redlock,
        new: Redlock,
        on_step: Callable[[str], None],
        patience: float,
    ) -> None:
        self._old, self._new = old, new
        self._on_step = on_step
        self._patience = patience
        self._closed_config = f"closed: moving to {new.guard.config}"
        self._needed = len(old.labels) - old.quorum + 1

    def run(self) -> None:
        self._close()
        counters = self._read_fences()
        self._open(counters)

    def _close(self) -> None:
        quarantine = max(self._old.timing.quarantine, self._new.timing.quarantine)
        args = [
            self._old.guard.config,
            self._closed_config,
            self._new.guard.config,
            round(quarantine * 1000),
        ]

        def close() -> Ballot:
            return self._old.guard.ask(CLOSE, args).ballot

        def enough(ballot: Ballot) -> bool:
            return len(_closed(ballot)) >= self._needed

        ballot = self._repeat(close, enough, "closed")
        self._on_step(
            f"{len(_closed(ballot))} of {len(self._old.labels)} old nodes are closed: "
            "nothing is granted or renewed from now on."
        )
        waits = ballot.numbers(VoteKind.QUARANTINED)
        if waits:
            longest = max(waits) / 1000
            self._on_step(f"Waiting {longest:.0f} s until the last old lock expires.")
        while waits:
            self._new.clock.sleep(max(waits) / 1000 + _MARGIN)
            waits = close().numbers(VoteKind.QUARANTINED)

    def _read_fences(self) -> list[Any]:
        pairs: list[Any] = []

        def read() -> int:
            pairs.clear()
            sources = set()
            for config in (self._closed_config, self._new.guard.config):
                request = self._old.guard.ask(COUNTERS, [config])
                for index in request.ballot.indexes(VoteKind.GRANTED):
                    sources.add(index)
                    pairs.extend(request.replies[index][1:])
            return len(sources)

        try:
            self._repeat(read, lambda sources: sources >= self._needed, "read")
        except RedlockError:
            log.warning(
                "Too few old nodes still know the fences that were granted. The new "
                "nodes start above their own TIME: the order of fences across this "
                "reconfiguration depends on clocks."
            )
            self._on_step("Too few old nodes know their fences: clocks order them.")
            return ["floor", round(self._new.clock.wall() * 1e6), *greatest(pairs)]
        self._on_step(f"The fences were read from at least {self._needed} old nodes.")
        return greatest(pairs)

    def _open(self, counters: Sequence[Any]) -> None:
        known = [self._old.guard.config, self._closed_config, self._new.guard.config]

        def open_() -> Ballot:
            return self._new.guard.ask(OPEN, [*known, *counters]).ballot

        nodes = len(self._new.labels)
        ballot = self._repeat(open_, lambda b: b.granted == nodes, "opened")
        self._on_step(
            f"All {ballot.granted} nodes vote for the new configuration: "
            f"{self._new.guard.config}."
        )

    def _repeat(
        self, step: Callable[[], Any], enough: Callable[[Any], bool], verb: str
    ) -> Any:
        clock = self._new.clock
        give_up_at = clock.monotonic() + self._patience
        while True:
            result = step()
            if enough(result):
                return result
            if clock.monotonic() > give_up_at:
                reason = result.reasons() if isinstance(result, Ballot) else result
                raise RedlockError(
                    f"Too few nodes could be {verb} ({reason}). Nothing is granted "
                    "until the reconfiguration is done: run it again, with the same "
                    "arguments, when the nodes are up."
                )
            clock.sleep(_PAUSE)


def _closed(ballot: Ballot) -> list[int]:
    """Return the nodes that are closed, or have the new configuration already."""
    closed = ballot.indexes(VoteKind.QUARANTINED) + ballot.indexes(VoteKind.FREE)
    return closed + ballot.indexes(VoteKind.GRANTED)
