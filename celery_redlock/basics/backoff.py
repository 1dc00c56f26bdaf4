"""The pause before the next try: longer each time, and random.

Processes that failed together try again together, unless chance spreads them.
Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence


T = TypeVar("T")

_MOST_DOUBLINGS = 16


def doubled(first: float, times: int, longest: float) -> float:
    """Return ``first`` seconds, doubled this many times, at most ``longest``."""
    return min(longest, first * 2.0 ** min(times, _MOST_DOUBLINGS))


def jittered(seconds: float, least: float = 0.5, most: float = 1.0) -> float:
    """Return a random time between ``least`` and ``most`` times these seconds."""
    return seconds * random.uniform(least, most)  # noqa: S311  (no secret)


def any_of(things: Sequence[T]) -> T:
    """Return one of these things at random."""
    return things[min(int(jittered(len(things), 0.0)), len(things) - 1)]
