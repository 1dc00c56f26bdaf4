"""The durations of a deployment, and how they limit each other.

::

    3 × node_timeout  <  ttl  ≤  max_ttl  <  quarantine = 1.02 × max_ttl + 1 s
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from celery_redlock.basics.command import COMMAND
from celery_redlock.errors import ConfigurationError

_LEAST_ROUNDS = 3
_LEAST_TOLD = 0.01  # seconds
_TENTHS_MATTER = 9.95  # seconds
_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
_LONGEST = timedelta.max.total_seconds()  # nodes and stores can add it to an instant


def check_number(name: str, value: Any) -> None:
    """Raise `ConfigurationError` unless this is a number of seconds, and not nan."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value != value:  # noqa: PLR0124  (nan)
        raise ConfigurationError(f"{name} is {value!r}; write a number of seconds.")


def seconds_of(name: str, value: Any, *, zero: bool = False) -> float:
    """Return seconds, or a ``timedelta``, above 0 as float seconds: `_LONGEST` at most.

    With ``zero``, they may also be 0. The error has the ``name``.

    Raises:
        ConfigurationError: The value is no finite number of seconds, or too small.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds <= sys.float_info.max or not (seconds or zero):
        raise ConfigurationError(
            f"{name} is {value!r}; it must be {'0 or ' if zero else ''}a number of "
            "seconds above 0."
        )
    return min(float(seconds), _LONGEST)


def seconds_text(seconds: float) -> str:
    """Return a duration for a sentence, never as 0: ``12.3 s``, ``0.04 s``."""
    if seconds < _LEAST_TOLD:
        return f"less than {_LEAST_TOLD} s"
    return f"{seconds:.1f} s" if seconds >= 10 * _LEAST_TOLD else f"{seconds:.2f} s"


def duration(seconds: float) -> str:
    """Return a duration in words: ``0.4 s``, ``12 s``, ``3 m 05 s``."""
    if seconds == math.inf:
        return "for ever"
    if seconds < _TENTHS_MATTER:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, part, smaller in _UNITS:
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part:02} {smaller}"
    return f"{whole} s"


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds, checked against each other.

    Attributes:
        ttl: How long nodes keep a lock that is not renewed.
        max_ttl: The upper limit of every ttl; the same for all clients.
        node_timeout: How long a node may take to answer.
        connect_timeout: How long a connection may take to be made.
    """

    ttl: float
    max_ttl: float
    node_timeout: float
    connect_timeout: float

    def __post_init__(self) -> None:
        for name in ("max_ttl", "node_timeout", "connect_timeout"):
            object.__setattr__(self, name, seconds_of(name, getattr(self, name)))
        object.__setattr__(self, "ttl", self.checked(self.ttl))

    def checked(self, ttl: Any) -> float:
        """Return a ttl in seconds, if it fits this deployment.

        Raises:
            ConfigurationError: It is no duration, is above max_ttl, or is not above
                three node time-outs.
        """
        seconds = seconds_of("ttl", ttl)
        if seconds > self.max_ttl:
            raise ConfigurationError(
                f"The ttl of {seconds:g} s is above max_ttl ({self.max_ttl:g} s), the "
                "time for which a restarted node stays out of the vote. Lower the ttl "
                "(renewal keeps a long run locked), or raise max_ttl on all clients "
                f"with `{COMMAND} reconfigure`."
            )
        if seconds <= _LEAST_ROUNDS * self.node_timeout:
            raise ConfigurationError(
                f"The ttl of {seconds:g} s is not above three node time-outs "
                f"({self.node_timeout:g} s each): the lock could expire before it is "
                "granted. Raise it, or lower redlock_node_timeout."
            )
        return seconds

    @property
    def quarantine(self) -> float:
        """Seconds after which every lock that a node may have forgotten has ended.

        The sum of max_ttl, 1 % for nodes whose clocks run at different rates, 1 % for
        the holders' clocks, and a second for requests that were on their way.
        """
        return self.max_ttl * 1.02 + 1.0
