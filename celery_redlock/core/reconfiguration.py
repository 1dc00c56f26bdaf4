"""Change the list of nodes, or max_ttl, without two holders and without old fences.

::

    close old nodes ──► wait ──► read their fences ──► open the new nodes
    (N − q + 1 of them:   (the greater   (from N − q + 1)    (with those fences)
     no old majority is    quarantine)
     left, so nothing is
     granted or renewed)

While nodes are closed nobody gets a lock, and leases that are held are not
renewed: they end, or are released, within their ttl. Nodes that are closed say
so to clients of either configuration. Every step can be repeated, so that a
reconfiguration that was interrupted is resumed by starting it again: the wait is
a key on the closed nodes and goes on meanwhile.

Give clients the new settings when it is done, not before: where a majority of the
nodes is new, these cannot know that there are old ones. Then shut down the nodes that
were taken off the list: clients with the old settings could still use them among
themselves once they have been wiped.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_redlock.core.ballot import Ballot, VoteKind
from celery_redlock.core.guard import greatest
from celery_redlock.core.question import Question, by_everyone
from celery_redlock.core.scripts import CLOSE, COUNTERS, OPEN
from celery_redlock.errors import ConfigurationError, RedlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.core.scripts import Script

__all__ = ["reconfigure"]

log = logging.getLogger("celery_redlock.reconfiguration")

_PAUSE = 0.5  # seconds between two looks at the nodes
_MARGIN = 0.01  # seconds, for the rounding of milliseconds


def reconfigure(
    old: Redlock,
    new: Redlock,
    *,
    on_step: Callable[[str], None] = lambda _: None,
    patience: float = 30.0,
) -> None:
    """Move a deployment from one configuration to another. Blocks for the wait.

    Args:
        old: The service with the present nodes and max_ttl.
        new: The service with the nodes and max_ttl that shall be.
        on_step: Called with a sentence for each step, for people.
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
    if old.guard.prefix != new.guard.prefix:
        raise ConfigurationError(
            "A reconfiguration cannot change redlock_prefix: a new prefix is a new "
            "deployment. Stop all workers, and start it with `redlock init`."
        )
    _Move(old, new, on_step, patience).run()


class _Move:
    """One reconfiguration under way."""

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
        pairs = self._read_fences()
        self._open(pairs)

    def _close(self) -> None:
        quarantine = max(self._old.timing.quarantine, self._new.timing.quarantine)
        args = [
            self._old.guard.config,
            self._closed_config,
            self._new.guard.config,
            round(quarantine * 1000),
        ]

        def close() -> Ballot:
            return self._ask(self._old, CLOSE, args).ballot

        def closed(ballot: Ballot) -> bool:
            return len(_told(ballot)) >= self._needed

        ballot = self._until(close, closed, "closed")
        self._on_step(
            f"{len(_told(ballot))} of {len(self._old.labels)} old nodes are closed: "
            "nothing is granted or renewed from now on."
        )
        waits = ballot.numbers(VoteKind.QUARANTINED)
        if waits:
            longest = max(waits) / 1000
            self._on_step(f"Waiting {longest:.0f} s for the last old lock to end.")
        while waits:
            self._new.clock.sleep(max(waits) / 1000 + _MARGIN)
            waits = close().numbers(VoteKind.QUARANTINED)

    def _read_fences(self) -> list[Any]:
        pairs: list[Any] = []

        def read() -> int:
            pairs.clear()
            sources = set()
            for config in (self._closed_config, self._new.guard.config):
                question = self._ask(self._old, COUNTERS, [config])
                for index in question.ballot.indexes(VoteKind.GRANTED):
                    sources.add(index)
                    pairs.extend(question.replies[index][1:])
            return len(sources)

        try:
            self._until(read, lambda sources: sources >= self._needed, "read")
        except RedlockError:
            log.warning(
                "Too few old nodes still know the fences that were granted. The new "
                "nodes start above their own TIME: the order of fences across this "
                "reconfiguration rests on clocks."
            )
            self._on_step("Too few old nodes know their fences: clocks order them.")
            return ["floor", self._new.clock.wall_us(), *greatest(pairs)]
        self._on_step(f"The fences were read from at least {self._needed} old nodes.")
        return greatest(pairs)

    def _open(self, pairs: Sequence[Any]) -> None:
        known = [self._old.guard.config, self._closed_config, self._new.guard.config]

        def open_() -> Ballot:
            return self._ask(self._new, OPEN, [*known, *pairs]).ballot

        nodes = len(self._new.labels)
        ballot = self._until(open_, lambda b: b.granted == nodes, "opened")
        self._on_step(
            f"All {ballot.granted} nodes vote for the new configuration: "
            f"{self._new.guard.config}."
        )

    def _ask(self, service: Redlock, script: Script, args: Sequence[Any]) -> Question:
        guard = service.guard
        question = Question(
            script,
            [guard.fence_key, guard.meta_key, guard.quarantine_key],
            args,
            labels=service.labels,
            settle=by_everyone,
        )
        service.transport.ask(question)
        return question

    def _until(
        self, step: Callable[[], Any], done: Callable[[Any], bool], verb: str
    ) -> Any:
        clock = self._new.clock
        give_up_at = clock.monotonic() + self._patience
        while True:
            outcome = step()
            if done(outcome):
                return outcome
            if clock.monotonic() > give_up_at:
                why = outcome.reasons() if isinstance(outcome, Ballot) else outcome
                raise RedlockError(
                    f"Too few nodes could be {verb} ({why}). Nothing is granted until "
                    "the reconfiguration is done: run it again, with the same "
                    "arguments, when they are up."
                )
            clock.sleep(_PAUSE)


def _told(ballot: Ballot) -> list[int]:
    """Return the nodes that are closed by now, or have moved on already."""
    closed = ballot.indexes(VoteKind.QUARANTINED) + ballot.indexes(VoteKind.FREE)
    return closed + ballot.indexes(VoteKind.GRANTED)
