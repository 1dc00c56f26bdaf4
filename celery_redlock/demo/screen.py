"""What the audience sees: tables that are redrawn, and a summary at the end."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from celery_redlock.core.ballot import VoteKind
from celery_redlock.demo.journal import runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from celery_redlock.core.ballot import Ballot
    from celery_redlock.core.lease import Inspection
    from celery_redlock.demo.journal import Event

__all__ = ["Screen"]

_ROWS = 12


class Screen:
    """Draws what is going on. Where there is no terminal it prints what was said."""

    def __init__(self, console: Console, labels: Sequence[str]) -> None:
        self.console = console
        self._labels = labels
        self._said: deque[str] = deque(maxlen=6)
        self._live = Live(console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, sentence: str) -> None:
        """Tell what is being done."""
        self._said.append(sentence)
        if not self.console.is_terminal:
            self.console.print(f"· {sentence}")

    def draw(
        self,
        events: list[Event],
        published: dict[str, int],
        seen: dict[str, Inspection],
        votes: Ballot,
    ) -> None:
        """Redraw everything."""
        self._live.update(
            Group(
                self._calls(events, published, seen),
                self._nodes(seen, votes),
                Panel("\n".join(self._said), title="What is being done", height=8),
            )
        )

    def _calls(
        self,
        events: list[Event],
        published: dict[str, int],
        seen: dict[str, Inspection],
    ) -> Table:
        table = Table(title="Calls, newest first", expand=True)
        table.add_column("key")
        for column in ("published", "ran", "skipped", "renewals"):
            table.add_column(column, justify="right")
        table.add_column("votes")
        table.add_column("now", overflow="ellipsis", no_wrap=True, ratio=1)
        done = runs(events)
        for key in list(reversed(published))[:_ROWS]:
            mine = [run for run in done if run.key == key]
            skips = [e for e in events if e["what"] == "skipped" and e["key"] == key]
            running = [r for r in mine if not r.ended and "killed_at" not in r.facts]
            if running:
                now = f"[green]runs[/] in pid {running[-1].pid}"
            elif mine and mine[-1].ended is None:
                now = "[red]was killed[/]"
            else:
                now = "done" if mine else "waits"
            if skips and running:
                now += f"; a duplicate met {skips[-1]['holder']}"
            table.add_row(
                key,
                str(published[key]),
                str(len(mine)),
                str(len(skips)),
                str(sum(run.renewals for run in mine)),
                self._votes(seen.get(key)),
                now,
            )
        return table

    def _votes(self, inspection: Inspection | None) -> Text:
        if inspection is None or inspection.holder is None:
            return Text("")
        marks = Text()
        for vote in inspection.ballot.votes:
            taken = vote is not None and vote.kind is VoteKind.TAKEN
            marks.append("● " if taken else "○ ", "green" if taken else "red")
        return marks

    def _nodes(self, seen: dict[str, Inspection], votes: Ballot) -> Table:
        table = Table(title="Nodes", expand=True)
        locks = dict.fromkeys(self._labels, 0)
        for inspection in seen.values():
            for label, vote in zip(self._labels, inspection.ballot.votes, strict=True):
                locks[label] += vote is not None and vote.kind is VoteKind.TAKEN
        cells = []
        for label, vote in zip(self._labels, votes.votes, strict=True):
            table.add_column(label, justify="center")
            if vote is not None and vote.kind is VoteKind.GRANTED:
                cells.append(f"[green]votes[/], holds {locks[label]} locks")
            elif vote is not None and vote.kind is VoteKind.QUARANTINED:
                cells.append(f"[yellow]in quarantine[/], {vote.number // 1000} s")
            else:
                cells.append("[red]is dead[/]")
        table.add_row(*cells)
        return table
