"""The screen: tables of calls and nodes that are redrawn, and the latest messages."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from celery_redlock.operations.words import plural
from celery_redlock.wire.quorum import VoteKind
from demo.journal import runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from celery_redlock.locks.lease import Inspection
    from celery_redlock.wire.quorum import Ballot
    from demo.journal import Event

_ROWS = 12
_MESSAGES = 6


class Screen:
    """Shows the demo while it runs. Without a terminal it prints the messages only."""

    def __init__(
        self, console: Console, labels: Sequence[str], title: str = "Nodes"
    ) -> None:
        self.console = console
        self._title = title
        self._labels = labels
        self._messages: deque[str] = deque(maxlen=_MESSAGES)
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._log = _Log(self)

    def __enter__(self) -> Self:
        logging.getLogger("celery_redlock").addHandler(self._log)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        logging.getLogger("celery_redlock").removeHandler(self._log)

    def say(self, message: str) -> None:
        """Show a message."""
        self._messages.append(message)
        if not self.console.is_terminal:
            self.console.print(f"· {message}")

    def draw(
        self,
        events: list[Event],
        published: dict[str, int],
        inspections: dict[str, Inspection],
        votes: Ballot,
    ) -> None:
        """Redraw everything."""
        self._live.update(
            Group(
                self._calls(events, published, inspections, votes),
                self._nodes(inspections, votes),
                Panel(
                    "\n".join(self._messages), title="Messages", height=_MESSAGES + 2
                ),
            )
        )

    def _calls(
        self,
        events: list[Event],
        published: dict[str, int],
        inspections: dict[str, Inspection],
        votes: Ballot,
    ) -> Table:
        table = Table(title="Calls by key, last published first", expand=True)
        table.add_column("key")
        for column in ("calls", "runs", "skipped", "renewals"):
            table.add_column(column, justify="right")
        table.add_column("nodes")
        table.add_column("state", overflow="ellipsis", no_wrap=True, ratio=1)
        all_runs = runs(events)
        for key in list(reversed(published))[:_ROWS]:
            found = [run for run in all_runs if run.key == key]
            skips = [e for e in events if e["event"] == "skipped" and e["key"] == key]
            running = [run for run in found if run.ended is None]
            if running:
                state = f"[green]runs[/] in process {running[-1].pid}"
            elif found and found[-1].killed:
                state = f"[red]process {found[-1].pid} was killed[/]"
            else:
                state = "done" if found else "waits in the queue"
            if skips and running:
                state += f"; a duplicate was refused: {skips[-1]['holder']}"
            table.add_row(
                key,
                str(published[key]),
                str(len(found)),
                str(len(skips)),
                str(sum(run.renewals for run in found)),
                self._nodes_of(inspections.get(key), votes),
                state,
            )
        return table

    @staticmethod
    def _nodes_of(inspection: Inspection | None, votes: Ballot) -> Text:
        """Return a mark for each node: full if it has the lock, green if it votes."""
        if inspection is None or inspection.holder is None:
            return Text("")
        marks = Text()
        for vote, present in zip(inspection.ballot.votes, votes.votes, strict=True):
            taken = vote is not None and vote.kind is VoteKind.TAKEN
            may_vote = present is not None and present.kind is VoteKind.GRANTED
            color = "yellow" if taken and not may_vote else "green" if taken else "red"
            marks.append("● " if taken else "○ ", color)
        return marks

    def _nodes(self, inspections: dict[str, Inspection], votes: Ballot) -> Table:
        table = Table(title=self._title, expand=True)
        locks = dict.fromkeys(self._labels, 0)
        for inspection in inspections.values():
            for label, vote in zip(self._labels, inspection.ballot.votes, strict=True):
                locks[label] += vote is not None and vote.kind is VoteKind.TAKEN
        cells = []
        for label, vote in zip(self._labels, votes.votes, strict=True):
            table.add_column(label, justify="center")
            if vote is not None and vote.kind is VoteKind.GRANTED:
                cells.append(f"[green]votes[/], has {plural(locks[label], 'lock')}")
            elif vote is not None and vote.kind is VoteKind.QUARANTINED:
                cells.append(f"[yellow]in quarantine[/], {vote.number // 1000} s left")
            else:
                cells.append("[red]does not answer[/]")
        table.add_row(*cells)
        return table


class _Log(logging.Handler):
    """Shows what celery-redlock logs in this process."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record."""
        self._screen.say(f"celery-redlock logs: {escape(record.getMessage())}")
