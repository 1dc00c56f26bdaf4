"""``bench``: what a lock costs on these nodes, from this machine."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from celery_redlock.cli.session import DONE, Command, Session
from celery_redlock.cli.table import Cell, Column, Row, painted, table
from celery_redlock.cli.words import plural
from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import new_base, new_token
from celery_redlock.core.probe import NodeSilent, each_node
from celery_redlock.core.question import vote_of

if TYPE_CHECKING:
    from celery_redlock.core.probe import Probe
    from celery_redlock.core.redlock import Redlock

__all__ = ["bench"]

_MS = 1000
_PERCENTILES = (0.5, 0.95, 0.99)
_TTL = 5.0  # seconds, should we be interrupted
_BARS, _WIDEST = 10, 40


@dataclass(frozen=True, slots=True)
class Series:
    """How long each of many equal things took, in seconds, the shortest first."""

    seconds: list[float]

    def within(self, share: float) -> float:
        """Return the time within which this share of them was done."""
        return self.seconds[min(len(self.seconds) - 1, int(share * len(self.seconds)))]

    def cells(self) -> Row:
        """Return what the table says of it."""
        times = [*map(self.within, _PERCENTILES), self.seconds[-1]]
        return [f"{time * _MS:.2f}" for time in times]

    def document(self) -> dict[str, float]:
        """Return what JSON says of it, in milliseconds."""
        named = {
            f"p{share:.0%}".rstrip("%"): self.within(share) for share in _PERCENTILES
        }
        named["max"] = self.seconds[-1]
        return {name: round(time * _MS, 4) for name, time in named.items()}

    def histogram(self) -> list[tuple[float, float, int]]:
        """Return bars from the least to the 99th percentile, and one for the rest.

        Each is from, to (both in seconds) and how many.
        """
        least, most = self.seconds[0], self.within(_PERCENTILES[-1])
        step = (most - least) / _BARS or 1e-6
        counts = [0] * (_BARS + 1)
        for time in self.seconds:
            counts[min(_BARS, int((time - least) / step))] += 1
        edges = [least + step * number for number in range(_BARS + 1)]
        return list(zip(edges, [*edges[1:], self.seconds[-1]], counts, strict=True))


@click.command(cls=Command, short_help="Measure what a lock costs here.")
@click.option("--count", default=500, show_default=True, help="How many locks.")
@click.pass_context
def bench(ctx: click.Context, *, count: int) -> None:
    """Take and release locks, one after the other, and tell how long that takes.

    The locks have keys of their own and hinder nobody; the nodes have some work.
    """
    session: Session = ctx.obj
    if count < 1:
        raise click.BadParameter("At least 1.", param_hint="--count")
    service = session.redlock
    service.check()  # connects
    acquire, release = _quorum(service, count)
    both = Series(sorted(map(sum, zip(acquire, release, strict=True))))
    measured = {
        "acquire": Series(sorted(acquire)),
        "release": Series(sorted(release)),
        "acquire and release": both,
    }
    nodes = dict(zip(service.labels, _nodes(service, count), strict=True))
    session.tell(
        _report(service, measured, nodes),
        {
            "count": count,
            "quorum": {name: series.document() for name, series in measured.items()},
            "nodes": {
                label: str(one) if isinstance(one, NodeSilent) else one.document()
                for label, one in nodes.items()
            },
            "histogram": [
                {"from": least * _MS, "to": most * _MS, "count": number}
                for least, most, number in both.histogram()
            ],
        },
    )
    ctx.exit(DONE)


def _quorum(service: Redlock, count: int) -> tuple[list[float], list[float]]:
    """Take and release locks on a majority. Return how long each of both took."""
    clock, run = SYSTEM_CLOCK, secrets.token_hex(4)
    acquire, release = [], []
    for number in range(count):
        asked_at = clock.monotonic()
        lease = service.acquire(f"bench:{run}:{number}", min(_TTL, service.timing.ttl))
        had_at = clock.monotonic()
        service.release(lease)
        acquire.append(had_at - asked_at)
        release.append(clock.monotonic() - had_at)
    return acquire, release


def _nodes(service: Redlock, count: int) -> list[Series | NodeSilent]:
    """Do the same on each node alone, one node after the other."""

    def cycle(probe: Probe, *, by_source: bool) -> float:
        key, token = f"bench:{secrets.token_hex(8)}", new_token(new_base())
        asked = service.commands.acquire(key, ttl=_TTL, token=token, facts="")
        freed = service.commands.release(key, token)
        asked_at = SYSTEM_CLOCK.monotonic()
        packed = asked.packed_source() if by_source else asked.packed()
        vote = vote_of(probe.converse(packed, 1)[0])
        probe.converse(freed.packed(), 1)
        if vote.kind is not VoteKind.GRANTED:
            raise NodeSilent(f"gave no vote: {vote.reason or vote.kind.value}")
        return SYSTEM_CLOCK.monotonic() - asked_at

    def measure(probe: Probe) -> Series:
        cycle(probe, by_source=True)  # it knows the script from now on
        return Series(sorted(cycle(probe, by_source=False) for _ in range(count)))

    timeout = service.timing.connect_timeout
    return [
        each_node([address], measure, timeout=timeout)[0]
        for address in service.addresses
    ]


def _report(
    service: Redlock,
    measured: dict[str, Series],
    nodes: dict[str, Series | NodeSilent],
) -> list[str]:
    columns = [
        Column("MILLISECONDS"),
        *(Column(f"{share:.0%}", right=True) for share in _PERCENTILES),
        Column("LONGEST", right=True),
    ]
    rows: list[Row] = [[name, *series.cells()] for name, series in measured.items()]
    for label, one in nodes.items():
        if isinstance(one, Series):
            rows.append([f"{label} alone", *one.cells()])
    both = measured["acquire and release"]
    rate = len(both.seconds) / sum(both.seconds)
    locks = plural(len(both.seconds), "lock")
    nodes_ = plural(len(service.labels), "node")
    lines = [
        f"{locks} on {nodes_}, one after the other: {rate:,.0f} a second.",
        "",
        *table(columns, rows),
        "",
        *_bars(both),
    ]
    return lines + [
        painted(f"{label} {one}.", "warning")
        for label, one in nodes.items()
        if isinstance(one, NodeSilent)
    ]


def _bars(series: Series) -> list[str]:
    bars = series.histogram()
    most = max(number for _, _, number in bars)
    rows: list[Row] = [
        [
            f"{start * _MS:.2f} – {end * _MS:.2f}",
            Cell("█" * -(-number * _WIDEST // most), "good"),
            str(number),
        ]
        for start, end, number in bars
    ]
    columns = (
        Column("ACQUIRE AND RELEASE", right=True),
        Column(""),
        Column("", right=True),
    )
    return table(columns, rows)
