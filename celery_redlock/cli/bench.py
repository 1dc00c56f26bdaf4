"""``bench``: what a lock costs on these nodes, from this machine."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import TYPE_CHECKING

import click

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.cli.output.format import Column, MoodText, Row, table, unseen_lines
from celery_redlock.cli.output.session import Command, Session
from celery_redlock.locks.lease import new_base, new_token
from celery_redlock.operations.words import plural
from celery_redlock.wire.client import NodeUnreachable, each_node
from celery_redlock.wire.quorum import Vote, VoteKind
from celery_redlock.wire.requests import ScriptRequest, vote_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.wire.client import NodeClient, PerNode
    from celery_redlock.wire.url import NodeAddress

_MS = 1000
_SHARES = (0.5, 0.95, 0.99)
_TTL = 5.0  # seconds until a lock expires if the command is killed
_BARS, _WIDEST = 10, 40


def _percentile(seconds: Sequence[float], share: float) -> float:
    """Return the duration within which this share of sorted durations is."""
    return seconds[min(len(seconds) - 1, int(share * len(seconds)))]


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return percentiles and the longest of sorted durations, in milliseconds."""
    found = {
        f"p{share * 100:.0f}": _percentile(seconds, share) * _MS for share in _SHARES
    }
    return {**found, "max": seconds[-1] * _MS}


def _histogram(seconds: Sequence[float]) -> list[tuple[float, float, int]]:
    """Return bars from the least to the 99th percentile, and one for the rest.

    Each is from, to (both in milliseconds) and how many.
    """
    least, most = seconds[0], _percentile(seconds, _SHARES[-1])
    step = (most - least) / _BARS or 1e-6
    counts = Counter(min(_BARS, int((time - least) / step)) for time in seconds)
    edges = [least + step * number for number in range(_BARS + 1)] + [seconds[-1]]
    return [
        (edges[bar] * _MS, edges[bar + 1] * _MS, counts[bar])
        for bar in range(_BARS + 1)
    ]


@click.command(cls=Command, short_help="Measure what a lock costs here.")
@click.option("--count", default=500, show_default=True, help="How many locks.")
@click.pass_obj
def bench(session: Session, *, count: int) -> None:
    """Measure how long it takes to acquire and release locks, one after the other.

    The locks have keys of their own, so no task waits for them. The nodes have some
    extra load.
    """
    if count < 1:
        raise click.BadParameter("At least 1.", param_hint="--count")
    redlock = session.redlock
    redlock.check()  # connects
    acquire, release = _on_majority(redlock, count)
    both = sorted(map(sum, zip(acquire, release, strict=True)))
    measured = {"acquire": sorted(acquire), "release": sorted(release)}
    measured["acquire and release"] = both
    alone: dict[str, list[float]] = {}
    unseen: dict[str, str] = {}
    for address in redlock.addresses:
        node = _on_one_node(redlock, address, count)
        alone |= node.results
        unseen |= node.unseen
    rate = count / sum(both)
    locks, nodes = plural(count, "lock"), plural(len(redlock.labels), "node")
    each = {**measured, **{f"{name} alone": one for name, one in alone.items()}}
    head = f"{locks} on {nodes}, one after the other: {rate:,.0f} per second."
    session.tell(
        [head, "", *_table(each), "", *_bars(both), *unseen_lines(unseen)],
        lambda: {
            "count": count,
            "quorum": {name: _percentiles(them) for name, them in measured.items()},
            "nodes": {name: _percentiles(them) for name, them in alone.items()}
            | unseen,
            "histogram": [
                {"from": start, "to": end, "count": number}
                for start, end, number in _histogram(both)
            ],
        },
    )


def _on_majority(redlock: Redlock, count: int) -> tuple[list[float], list[float]]:
    """Return how long each acquire and each release took on a majority."""
    clock, run = SYSTEM_CLOCK, secrets.token_hex(4)
    acquire, release = [], []
    for number in range(count):
        asked_at = clock.monotonic()
        lease = redlock.acquire(f"bench:{run}:{number}", min(_TTL, redlock.timing.ttl))
        had_at = clock.monotonic()
        redlock.release(lease)
        acquire.append(had_at - asked_at)
        release.append(clock.monotonic() - had_at)
    return acquire, release


def _on_one_node(
    redlock: Redlock, address: NodeAddress, count: int
) -> PerNode[list[float]]:
    """Measure acquire and release on this node alone."""

    def cycle(client: NodeClient, *, by_source: bool = False) -> float:
        key, token = f"bench:{secrets.token_hex(8)}", new_token(new_base())
        acquire = redlock.acquire_request(key, ttl=_TTL, token=token, holder_info="")
        release = redlock.release_request(key, token)

        def ask(request: ScriptRequest) -> Vote:
            script, keys, args = request.call
            head = ("EVAL", script.source) if by_source else ("EVALSHA", script.sha)
            (reply,) = client.ask((*head, len(keys), *keys, *args))
            return vote_of(reply, script)

        asked_at = SYSTEM_CLOCK.monotonic()
        vote, _ = ask(acquire), ask(release)
        if vote.kind is not VoteKind.GRANTED:
            raise NodeUnreachable(f"gave no vote: {vote.reason or vote.kind.value}")
        return SYSTEM_CLOCK.monotonic() - asked_at

    def measure(client: NodeClient) -> list[float]:
        cycle(client, by_source=True)  # the node knows both scripts from now on
        return sorted(cycle(client) for _ in range(count))

    return each_node([address], measure, timeout=redlock.timing.connect_timeout)


def _table(measured: dict[str, list[float]]) -> list[str]:
    columns = [
        Column("MILLISECONDS"),
        *(Column(f"{share:.0%}", right=True) for share in _SHARES),
        Column("LONGEST", right=True),
    ]
    rows: list[Row] = [
        [name, *(f"{time:.2f}" for time in _percentiles(them).values())]
        for name, them in measured.items()
    ]
    return table(columns, rows)


def _bars(seconds: Sequence[float]) -> list[str]:
    bars = _histogram(seconds)
    most = max(number for _, _, number in bars)
    rows: list[Row] = []
    for start, end, number in bars:
        bar = MoodText("█" * -(-number * _WIDEST // most), "good")
        rows.append([f"{start:.2f} – {end:.2f}", bar, str(number)])
    head = Column("ACQUIRE AND RELEASE", right=True), Column(""), Column("", right=True)
    return table(head, rows)
