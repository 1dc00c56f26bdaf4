"""Limits: how many holders a key may have at once, and how many starts in a period."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redlock.basics.timing import seconds_of
from celery_redlock.errors import ConfigurationError
from celery_redlock.scripts.keys import PERMIT, START, key_of, keys_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


MOST_PERMITS = 1000
START_WITHIN = 10.0  # seconds after the ttl of the grant, in which the work must start
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DIGITS = re.compile(r"[1-9]\d{0,3}")  # of the number of a permit
_RATE = re.compile(r"(\d+)/([a-z]+)")


class Limit(NamedTuple):
    """A limit on the holders of a key, or on the starts of its holders.

    Attributes:
        key: The key.
        most: How many holders it may have at once, or how many starts in a period.
        period: Seconds for which a permit is kept after the start of its holder; 0 for
            a limit of holders at once.
        is_call: Whether the key is the id of a call, of which one copy runs at a time:
            see `with_copies`.
    """

    key: str
    most: int
    period: float = 0.0
    is_call: bool = False

    @property
    def head(self) -> str:
        """The beginning of the names of the permits, before the number."""
        return f"{self.key}{START if self.period else PERMIT}"

    def name(self, number: int) -> str:
        """Return the name of one permit, counted from 1. No permit has the number 0."""
        is_lock = number == 1 and not self.period
        return self.key if is_lock else f"{self.head}{number}"

    def names(self) -> Iterator[str]:
        """Yield the names of all permits."""
        return map(self.name, range(1, self.most + 1))

    def number(self, name: str) -> int:
        """Return the number of the permit with this name; 0 for other names.

        It may be greater than ``most``, of a client with another limit.
        """
        if name == self.key:
            return 0 if self.period else 1
        digits = name[len(self.head) :] if name.startswith(self.head) else ""
        number = int(digits) if _DIGITS.fullmatch(digits) else 0
        return number if self.name(number) == name else 0


Limits = tuple[Limit, ...]
"""What a call needs a permit of: one limit for each key, and one more for a rate.

Empty where every key has one holder at a time and there is no rate: a plain lock.
"""


class Wanted(NamedTuple):
    """The lock or the permits that a call needs.

    Attributes:
        key: The text of its keys (``scripts.keys.key_of``).
        limits: The limits of its permits; empty for a plain lock.
        in_order: Whether the call runs in the order of publishing.
    """

    key: str
    limits: Limits = ()
    in_order: bool = False


class Waits(NamedTuple):
    """The wait of a refused call.

    Attributes:
        wanted: What it waits for.
        rank: µs since 1970 when it was published.
        stays_after_countdown: Whether it waits on when its countdown ends and its lock
            is held.
        backlog: The key in whose backlog it is; ``""``: in none.
        margin: Seconds for which it keeps its place there after its countdown.
    """

    wanted: Wanted
    rank: int
    stays_after_countdown: bool
    backlog: str
    margin: float


def with_copies(limits: Limits, task_id: str) -> Limits:
    """Return the limits of a call, and one that lets one copy run at a time.

    A broker may deliver one message twice. Copies find each other's plain lock, but
    each of them could have a permit of its own. So they share one more lock, which has
    the id of the call. It stands first: a refusal names it before any other limit.
    """
    if not (limits and task_id):
        return limits
    return (Limit(task_id, 1, is_call=True), *limits)


def wanted(
    key: str | Iterable[str] | Mapping[str, int],
    limit: int | None = None,
    rate: Any = None,
) -> tuple[str, Limits]:
    """Return the text of the keys (``scripts.keys.key_of``), and the limits.

    Args:
        key: A key, several of them, or several with the limit of each.
        limit: How many holders one key may have; by default 1. With a rate and one
            key it is the number of starts.
        rate: How many starts each key may have in a period: see `rate_of`.

    Raises:
        ConfigurationError: A value cannot be used, or there is a limit beside several
            keys.
    """
    text = key_of(key)
    keys = keys_of(text)
    if limit is not None and (keys[1:] or isinstance(key, Mapping)):
        raise ConfigurationError(
            "limit is for one key. Write the limit of each of several keys, such as "
            '{"tenant:1": 1, "imports": 10}.'
        )
    starts, period = (0, 0.0) if rate is None else rate_of(rate)
    most = (starts or 1) if limit is None else limit_of("limit", limit)
    limits = [Limit(one, 1 if keys[1:] else most) for one in keys]
    if isinstance(key, Mapping):
        limits = [
            Limit(one, limit_of(f"The limit of {one!r}", key[one])) for one in keys
        ]
    if rate is not None:
        limits += [Limit(one, starts, period) for one in keys]
    is_plain = rate is None and all(one.most == 1 for one in limits)
    return text, () if is_plain else tuple(limits)


def mosts_of(
    keys: Iterable[str] | Mapping[str, int] | None, limit: int | None, rate: Any
) -> dict[str, int]:
    """Return how many holders each key of a call may have at once, by its text.

    Args:
        keys: The texts of several keys, or the limit of each. None: the call has one
            key, whose text in the result is ``""``.
        limit: The limit of that one.
        rate: How many starts each key may have in a period: see `rate_of`.
    """
    if keys is not None:
        return dict(keys) if isinstance(keys, Mapping) else dict.fromkeys(keys, 1)
    return {"": limit or (1 if rate is None else rate_of(rate)[0])}


def limit_of(name: str, value: Any) -> int:
    """Return the number of permits that an option gives, checked.

    Args:
        name: The name of the option, for the error.
        value: A whole number from 1 to `MOST_PERMITS`.

    Raises:
        ConfigurationError: It is none.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not 1 <= value <= MOST_PERMITS:
        raise ConfigurationError(
            f"{name} is {value!r}; it must be a whole number from 1 to {MOST_PERMITS}."
        )
    return int(value)


def rate_of(value: Any) -> tuple[int, float]:
    """Return a rate as the number of starts and the period in seconds.

    Args:
        value: ``"10/m"``, also with ``s``, ``h`` or ``d``; or a number and the period
            in seconds or as a ``timedelta``: ``(10, timedelta(minutes=5))``.

    Raises:
        ConfigurationError: It is none of these, or has too many starts.
    """
    remedy = (
        "Write a number of starts and a unit, such as '10/m' (s, m, h or d), or a "
        "number and a period, such as (10, timedelta(minutes=5))"
    )
    match value:
        case str():
            found = _RATE.fullmatch(value.replace(" ", ""))
            if not found:
                raise ConfigurationError(f"rate is {value!r}. {remedy}.")
            if found[2] not in _UNITS:
                raise ConfigurationError(
                    f"rate is {value!r}; there is no unit {found[2]!r}. {remedy}."
                )
            starts, period = int(found[1]), _UNITS[found[2]]
        case (int() as starts, int() | float() | timedelta() as given):
            period = seconds_of("The period of rate", given)
        case _:
            raise ConfigurationError(f"rate is {value!r}. {remedy}.")
    if isinstance(starts, bool) or not 1 <= starts <= MOST_PERMITS:
        raise ConfigurationError(
            f"rate is {value!r}; the number of starts must be from 1 to "
            f"{MOST_PERMITS}. For more, shorten the period: 6000/h is 100/m."
        )
    return starts, period
