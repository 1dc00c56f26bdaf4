"""Changes the list of nodes, or max_ttl, without two holders and without old fences.

::

    look ──► close the nodes ──► wait ──► read their fences ──► open the new nodes
             (a majority of the  (the greater  (N − q + 1 of the  (with those fences)
              old, all the new)   quarantine)   old)

While a majority of the old nodes is closed, no client gets a lock, and no lease is
renewed: leases expire, or are released, within their ttl. A closed node says so to
clients of either configuration.

The new nodes are closed as well, and only a node that is closed for this move, and has
waited, is opened. So a node that lost its memory meanwhile waits once more, whenever
another operator runs the command again, and a node that votes already is left alone.
A node that is closed for one move is not closed for another: a majority is needed, so
of two operators with different plans at most one goes on.

Every step can be repeated. An interrupted reconfiguration is resumed by starting it
again: the wait is a field on the closed nodes and goes on meanwhile. ``abort`` takes it
back, until the first node is opened: it moves the closed nodes back to the old
configuration in the same way, which takes one more wait.

Update the settings of all clients when it is done, not before: if a majority of the
nodes is new, these nodes do not know about the old ones. Then shut down the nodes that
were removed: clients with the old settings could use them again once they have been
wiped.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NoReturn

from celery_redlock.core.configuration import refusal
from celery_redlock.core.quorum import VoteKind
from celery_redlock.core.restart_guard import greatest
from celery_redlock.core.scripts import CLOSE, COUNTERS, OPEN
from celery_redlock.core.transport.client import each_node
from celery_redlock.errors import ConfigurationError, RedlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_redlock.core.quorum import Ballot
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.core.transport.client import NodeClient
    from celery_redlock.core.transport.url import NodeAddress

__all__ = ["reconfigure"]

log = logging.getLogger(__name__)

_PAUSE = 0.5  # seconds between two tries of a step
_MARGIN = 0.01  # seconds, for the rounding of milliseconds


def reconfigure(
    old: Redlock,
    new: Redlock,
    *,
    abort: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
    patience: float = 30.0,
) -> None:
    """Move a deployment from one configuration to another. Blocks until it is done.

    Args:
        old: A lock service with the present nodes and max_ttl.
        new: A lock service with the future nodes and max_ttl.
        abort: Move back instead: an interrupted move from `old` to `new` is undone.
        on_step: Called with a sentence for the operator after each step.
        patience: Seconds to keep trying to reach enough nodes in each step.

    Raises:
        ConfigurationError: Nothing would change, prefixes differ, or the restart
            guard is off. Nothing was changed.
        RedlockError: Not enough nodes could be closed, read or opened, or a node
            belongs to another deployment. The message says whether anything was
            changed. Run it again with the same arguments: it goes on where it stopped.
    """
    if not (old.guard.enabled and new.guard.enabled):
        raise ConfigurationError(
            "The restart guard is off, so nodes do not keep waits. Stop all workers, "
            "change the settings, delete the keys of this prefix on all nodes, wait "
            "for one max_ttl, and start the workers again."
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
    there, back = f"closed: moving to {new.guard.config}", "closed: moving back"
    if abort:
        # Those who run the move open nodes that are closed for it, a majority at
        # least: if all but a minority are closed for the way back, they cannot.
        back_to_old = f"{back} to {old.guard.config}"
        _Move(new, old, old, there, back_to_old, on_step, patience).run()
    else:
        _Move(old, new, old, old.guard.config, there, on_step, patience).run()


class _Move:
    """One move in progress.

    Args:
        old: The nodes of which a majority is closed.
        new: The nodes that vote in the end. All of them must be up.
        known_by: The nodes that know the fences.
        before: The configuration that the nodes have before the move.
        closed: The configuration that they have during the move.
        on_step: See `reconfigure`.
        patience: See `reconfigure`.
    """

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        old: Redlock,
        new: Redlock,
        known_by: Redlock,
        before: str,
        closed: str,
        on_step: Callable[[str], None],
        patience: float,
    ) -> None:
        self._old, self._new, self._known_by = old, new, known_by
        self._before, self._closed, self._after = before, closed, new.guard.config
        self._on_step = on_step
        self._patience = patience

    def run(self) -> None:
        self._look()
        self._close()
        self._open(self._read_fences())

    # -- look ----------------------------------------------------------------------

    def _look(self) -> None:
        """Check that the move can be finished, before anything is changed."""
        meta = self._new.keys.meta

        def config_of(client: NodeClient) -> str:
            (config,) = client.ask(("HGET", meta, "config"))
            return config.decode(errors="replace") if config else ""

        both = {**_addresses(self._old), **_addresses(self._new)}
        timeout = self._new.timing.connect_timeout
        found = each_node(list(both.values()), config_of, timeout=timeout)
        known = ("", self._before, self._closed, self._after)
        for label, config in found.results.items():
            if config not in known:
                self._refuse(f"Node {label} cannot be moved: {self._why(config)}")
        up = [label for label in self._old.labels if label in found.results]
        if len(up) < self._old.quorum:
            self._refuse(
                f"Only {len(up)} of the {len(self._old.labels)} nodes that are to be "
                f"closed answer, and {self._old.quorum} are needed: "
                f"{_reasons(found.unseen)}"
            )
        if any(label in found.unseen for label in self._new.labels):
            self._refuse(f"Every future node must be up: {_reasons(found.unseen)}")

    def _why(self, config: str) -> str:
        if config.startswith("closed"):
            return (
                f"it is {config}. Finish that reconfiguration first, or abort it with "
                "--abort and its arguments"
            )
        difference, _ = refusal(config, self._before)
        return f"the nodes {difference}"

    def _refuse(self, reason: str) -> NoReturn:
        raise RedlockError(f"{reason}. Nothing was changed.")

    # -- close and wait ------------------------------------------------------------

    def _close(self) -> None:
        """Close the nodes, and return when all their old locks have ended.

        A node counts only while it says that it is closed, and that its wait is over.
        So one that falls silent, or loses its memory, is waited for again.
        """
        before, old, new = None, self._old, self._new
        give_up_at = new.clock.monotonic() + self._patience
        while True:
            olds, news = self._ask_to_close(old), self._ask_to_close(new)
            waits = [*olds.numbers(VoteKind.QUARANTINED)]
            waits += news.numbers(VoteKind.QUARANTINED)
            closed = len(_closed(olds)) >= old.quorum
            is_closed = closed and len(_closed(news)) == len(new.labels)
            if is_closed and not waits:
                return
            if is_closed:
                if before is None:
                    self._on_step(
                        f"{len(_closed(olds))} of {len(old.labels)} nodes are closed: "
                        "nothing is granted or renewed from now on."
                    )
                left = max(waits) / 1000
                if before is None or left > before:
                    self._on_step(f"Waiting {left:.0f} s until the last lock expires.")
                before = left
                new.clock.sleep(left + _MARGIN)
                give_up_at = new.clock.monotonic() + self._patience
            elif new.clock.monotonic() > give_up_at:
                self._give_up(
                    "closed", olds if len(_closed(olds)) < old.quorum else news
                )
            else:
                new.clock.sleep(_PAUSE)

    def _ask_to_close(self, redlock: Redlock) -> Ballot:
        wait = max(self._old.guard.quarantine_ms, self._new.guard.quarantine_ms)
        args = (self._before, self._closed, self._after, wait)
        return redlock.guard.ask(CLOSE, args).ballot

    # -- read and open -------------------------------------------------------------

    def _read_fences(self) -> list[Any]:
        pairs: list[Any] = []
        source = self._known_by
        needed = len(source.labels) - source.quorum + 1

        def read() -> int:
            pairs.clear()
            sources = set()
            for config in (self._closed, self._after):
                request = source.guard.ask(COUNTERS, [config])
                for index in request.ballot.indexes(VoteKind.GRANTED):
                    sources.add(index)
                    pairs.extend(request.replies[index][1:])
            return len(sources)

        clock = self._new.clock
        give_up_at = clock.monotonic() + self._patience
        while (sources := read()) < needed and clock.monotonic() < give_up_at:
            clock.sleep(_PAUSE)
        if sources >= needed:
            self._on_step(f"The fences were read from at least {needed} nodes.")
            return greatest(pairs)
        log.warning(
            "Too few old nodes still know the fences that were granted. The new "
            "nodes start above the time of this clock: the order of fences across this "
            "reconfiguration depends on clocks."
        )
        self._on_step("Too few old nodes know their fences: clocks order them.")
        floor = round(clock.wall() * 1e6) + source.guard.hint_tolerance_us
        return [*greatest([*pairs, b"floor", floor])]

    def _open(self, counters: Sequence[Any]) -> None:
        new = self._new
        args = (self._closed, self._after, *counters)
        give_up_at = new.clock.monotonic() + self._patience
        while True:
            ballot = new.guard.ask(OPEN, args).ballot
            if ballot.granted == len(new.labels):
                break
            if new.clock.monotonic() > give_up_at:
                self._give_up("opened", ballot)
            new.clock.sleep(_PAUSE)
        self._on_step(
            f"All {ballot.granted} nodes vote for the new configuration: {self._after}."
        )

    def _give_up(self, verb: str, ballot: Ballot) -> NoReturn:
        raise RedlockError(
            f"Too few nodes could be {verb} ({ballot.reasons()}). Nothing is granted "
            "until the reconfiguration is done: run it again, with the same "
            "arguments, when the nodes are up, or take it back with --abort."
        )


def _closed(ballot: Ballot) -> list[int]:
    """Return the nodes that are closed, or have the new configuration already."""
    closed = ballot.indexes(VoteKind.QUARANTINED) + ballot.indexes(VoteKind.FREE)
    return closed + ballot.indexes(VoteKind.GRANTED)


def _addresses(redlock: Redlock) -> dict[str, NodeAddress]:
    return dict(zip(redlock.labels, redlock.addresses, strict=True))


def _reasons(unseen: Mapping[str, str]) -> str:
    return ", ".join(f"{label} {reason}" for label, reason in unseen.items())
