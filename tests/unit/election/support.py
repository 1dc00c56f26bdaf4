"""Candidates on fake nodes, who write down what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.election import Elector

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.testing import FakeClock, FakeNodes


__all__ = ["KEY", "TTL", "Candidate", "run"]

TTL = 15.0
KEY = "reindexer"


class Candidate(Elector):
    """A candidate with a way of its own to the nodes, which writes down its terms."""

    def __init__(self, nodes: FakeNodes, **options: Any) -> None:
        self.nodes = nodes
        self.told: list[tuple[str, int]] = []
        options = {"name": "a candidate", **options}
        super().__init__(
            nodes.redlock(max_ttl=60.0),
            KEY,
            on_elected=lambda term: self.told.append(("elected", term.number)),
            on_resigned=lambda term: self.told.append(
                ("lost" if term.was_lost else "resigned", term.number)
            ),
            **{"ttl": TTL, **options},
        )

    def leads(self) -> bool:
        """Tell whether it may do what only a leader may, at this moment."""
        return self.term is not None and self.term.is_valid()


def run(
    clock: FakeClock,
    *candidates: Candidate,
    seconds: float,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Let the candidates campaign whenever they want to, for so long."""
    due = {id(candidate): clock.monotonic() for candidate in candidates}
    end = clock.monotonic() + seconds
    while min(due.values()) <= end:
        candidate = min(candidates, key=lambda candidate: due[id(candidate)])
        left = due[id(candidate)] - clock.monotonic()
        if left > 0:
            clock.sleep(left)
        candidate.campaign()
        due[id(candidate)] = clock.monotonic() + candidate.pause
        assert sum(one.leads() for one in candidates) <= 1
        watch()
    clock.sleep(max(0.0, end - clock.monotonic()))
