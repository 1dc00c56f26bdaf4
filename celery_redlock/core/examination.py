"""Look at nodes: how they stand in the vote, their clocks, habits and permissions.

Nothing is judged here (``diagnostics`` does that), and nothing on a node changes.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_redlock.core.lease import Holder
from celery_redlock.core.permissions import denied_command, denied_to
from celery_redlock.core.probe import NodeSilent, each_node

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_redlock.core.clock import Clock
    from celery_redlock.core.guard import Guard
    from celery_redlock.core.probe import Probe
    from celery_redlock.core.redlock import Redlock

__all__ = [
    "Chart",
    "Glance",
    "Rhythm",
    "Standing",
    "examine",
    "glance",
]

_SAMPLE = 500  # keys
_BEATS = 12  # looks at a clock
_MS, _US = 1000, 1_000_000
_NO_SUCH_KEY = -2  # as PTTL says it


class Standing(enum.Enum):
    """Whether a node votes, and if not, why. The value says it in words."""

    VOTES = "votes"
    QUARANTINED = "in quarantine"
    UNSYNCED = "recovers its fences"
    NEW = "new or restarted"
    CLOSED = "closed for a reconfiguration"
    ESTRANGED = "set up differently"
    UNFIT = "unfit"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Glance:
    """A node at one moment.

    Attributes:
        label: Its name.
        standing: Whether it votes.
        reason: What there is to say about that: why it is silent or unfit, or the
            configuration that it has. Reads on after its name.
        wait: Seconds until its quarantine ends.
        info: All that INFO says, by name.
    """

    label: str
    standing: Standing
    reason: str = ""
    wait: float = 0.0
    info: Mapping[str, str] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """The random name of the server process."""
        return self.info.get("run_id", "")


@dataclass(frozen=True, slots=True)
class Rhythm:
    """What a series of looks at a node's clock has shown.

    Attributes:
        latencies: Seconds that each answer took, sorted.
        ahead: Seconds by which the node's wall clock is before ours.
        drift: Seconds per second by which it runs faster than our monotonic clock,
            as far as that is beyond doubt.
    """

    latencies: tuple[float, ...] = ()
    ahead: float = 0.0
    drift: float = 0.0


@dataclass(frozen=True, slots=True)
class Chart:
    """A node as a thorough look shows it.

    Attributes:
        glance: Where it stands.
        rhythm: Its clock.
        denied: Of ``permissions.COMMANDS`` and ``OUR_KEYS``, what it refuses us.
        strangers: Names of some keys that are not ours.
        holders: Some of those who hold locks on it.
        saves: When it writes snapshots, as in redis.conf; ``""`` for never, or if we
            cannot know.
        database: The number of the database in which our keys are.
    """

    glance: Glance
    rhythm: Rhythm = Rhythm()
    denied: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    holders: tuple[Holder, ...] = ()
    saves: str = ""
    database: int = 0

    @property
    def label(self) -> str:
        """The node's name."""
        return self.glance.label


def glance(redlock: Redlock) -> list[Glance]:
    """Return how each node stands now."""
    seen = each_node(
        redlock.addresses,
        functools.partial(_glance, guard=redlock.guard),
        timeout=redlock.timing.connect_timeout,
    )
    return [
        Glance(label, Standing.SILENT, str(outcome))
        if isinstance(outcome, NodeSilent)
        else outcome
        for label, outcome in zip(redlock.labels, seen, strict=True)
    ]


def examine(redlock: Redlock, *, span: float = 1.0) -> list[Chart]:
    """Look at each node thoroughly.

    Args:
        redlock: The service whose nodes they are.
        span: Seconds for which their clocks are watched. A drift of 0.5 % needs
            about a second to be told from the network's unsteadiness.
    """

    def look(probe: Probe) -> Chart:
        strangers, holders = _sample(probe, redlock.guard.prefix)
        return Chart(
            glance=_glance(probe, guard=redlock.guard),
            rhythm=_watch_clock(probe, redlock.clock, span),
            strangers=strangers,
            holders=holders,
            saves=_saves(probe),
            database=probe.database,
            denied=denied_to(probe, redlock.guard.prefix),  # the last thing asked
        )

    charts = []
    timeout = redlock.timing.connect_timeout
    for label, seen in zip(
        redlock.labels,
        each_node(redlock.addresses, look, timeout=timeout),
        strict=True,
    ):
        if isinstance(seen, NodeSilent):
            denied = denied_command(str(seen))
            silent = Glance(label, Standing.SILENT, str(seen))
            charts.append(Chart(silent, denied=(denied,) if denied else ()))
        else:
            charts.append(seen)
    return charts


def _glance(probe: Probe, *, guard: Guard) -> Glance:
    said, meta, left = probe.ask(
        ("INFO",), ("HGETALL", guard.meta_key), ("PTTL", guard.quarantine_key)
    )
    info = _pairs(re.split(r"\r?\n", _text(said)))
    known = [_text(item) for item in meta] if isinstance(meta, list) else []
    facts = dict(zip(known[::2], known[1::2], strict=True))
    left = left if isinstance(left, int) else _NO_SUCH_KEY
    standing, reason = _stand(probe, guard, info, facts, left)
    return Glance(probe.label, standing, reason, max(0, left) / _MS, info)


def _stand(
    probe: Probe,
    guard: Guard,
    info: Mapping[str, str],
    meta: Mapping[str, str],
    left: int,
) -> tuple[Standing, str]:
    """Judge as the node itself does in ``scripts.ACQUIRE``."""
    config, run_id = meta.get("config", ""), info.get("run_id")
    misfit = probe.facts.misfit
    judgements = (
        (misfit, Standing.UNFIT, misfit),
        (not guard.enabled, Standing.VOTES, ""),
        (config.startswith("closed"), Standing.CLOSED, config),
        (config not in ("", guard.config), Standing.ESTRANGED, config),
        (meta.get("run_id") != run_id, Standing.NEW, ""),
        (left != _NO_SUCH_KEY, Standing.QUARANTINED, ""),
        (meta.get("synced") != meta.get("life", run_id), Standing.UNSYNCED, ""),
        (True, Standing.VOTES, ""),
    )
    return next((standing, why) for applies, standing, why in judgements if applies)


def _watch_clock(probe: Probe, clock: Clock, span: float) -> Rhythm:
    beats: list[tuple[float, float, float]] = []  # our instant, its time, round trip
    ahead = 0.0
    for number in range(_BEATS):
        if number:
            clock.sleep(span / _BEATS)
        asked_at = clock.monotonic()
        (said,) = probe.ask(("TIME",))
        took = clock.monotonic() - asked_at
        if not isinstance(said, list):
            return Rhythm()
        time = int(said[0]) + int(said[1]) / _US
        beats.append((asked_at + took / 2, time, took))
        ahead = time - (clock.wall_us() / _US - took / 2)
    third = _BEATS // 3
    first = min(beats[:third], key=lambda beat: beat[2])
    last = min(beats[-third:], key=lambda beat: beat[2])
    elapsed = last[0] - first[0]
    doubt = (first[2] + last[2]) / 2
    gained = (last[1] - first[1]) - elapsed
    sure = max(0.0, abs(gained) - doubt) / elapsed
    return Rhythm(
        latencies=tuple(sorted(took for _, _, took in beats)),
        ahead=ahead,
        drift=sure if gained > 0 else -sure,
    )


def _saves(probe: Probe) -> str:
    # A user of its own has no business with CONFIG, and the node would log it.
    (said,) = [None] if probe.user else probe.ask(("CONFIG", "GET", "save"))
    return _text(said[1]) if isinstance(said, list) and len(said) > 1 else ""


def _sample(probe: Probe, prefix: str) -> tuple[tuple[str, ...], tuple[Holder, ...]]:
    (said,) = probe.ask(("SCAN", 0, "COUNT", _SAMPLE))
    keys = said[1] if isinstance(said, list) else []
    ours, locks = f"{prefix}:".encode(), f"{prefix}:lock:".encode()
    strangers = [_text(key) for key in keys if not key.startswith(ours)]
    held = [("GET", key) for key in keys if key.startswith(locks)]
    values = probe.ask(*held) if held else []
    holders = [Holder.parse(_text(v)) for v in values if isinstance(v, bytes)]
    return tuple(strangers), tuple(holders)


def _pairs(lines: list[str]) -> dict[str, str]:
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _text(data: Any) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else str(data)
