"""Candidates on fake nodes that record the events of their terms."""

from __future__ import annotations

from typing import Any

from celery_redlock.election import Elector
from celery_redlock.testing import FakeNodes

TTL = 15.0
KEY = "reindexer"


class Candidate(Elector):
    """A candidate with its own client of the nodes.

    Attributes:
        nodes: The client.
        clock: The clock of the nodes.
        due_at: When it campaigns next in `run`.
        events: What happened to its terms, and the numbers of the terms.
    """

    def __init__(self, nodes: FakeNodes, **options: Any) -> None:
        self.nodes = nodes
        self.clock: Any = nodes.clock
        self.due_at = self.clock.monotonic()
        self.events: list[tuple[str, int]] = []
        options = {"name": "a candidate", **options}
        super().__init__(
            nodes.redlock(max_ttl=60.0),
            KEY,
            on_elected=lambda term: self.events.append(("elected", term.number)),
            on_resigned=lambda term: self.events.append(
                ("lost" if term.was_lost else "resigned", term.number)
            ),
            **{"ttl": TTL, **options},
        )

    @property
    def leads(self) -> bool:
        """Whether it leads at this moment."""
        return self.term is not None and self.term.is_valid()

    def tick(self) -> None:
        """Campaign once."""
        self.campaign()
        self.due_at = self.clock.monotonic() + self.pause


def run(seconds: float, *tickers: Any) -> None:
    """Let candidates or beats tick whenever they are due, for this long. One leads."""
    clock = tickers[0].clock
    end = clock.monotonic() + seconds
    while (ticker := min(tickers, key=lambda one: one.due_at)).due_at <= end:
        clock.advance(max(0.0, ticker.due_at - clock.monotonic()))
        ticker.tick()
        assert sum(one.leads for one in tickers) <= 1
    clock.advance(max(0.0, end - clock.monotonic()))
