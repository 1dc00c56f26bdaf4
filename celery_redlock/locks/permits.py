"""Permits: at most so many holders of a key at once, and so many starts in a period.

A permit is an ordinary lock on one of n names, which the client chooses from those that
the nodes say are free. Each name has one holder at a time, and so n names have at most
n: renewal, loss, restart guard and fences hold for a permit as they do for a lock. (A
counter on each node, with a majority of counters, would let in more than n without any
fault: of five nodes with n = 5, three may count one client and three another.)

================  ==================================================================
limit             names of its permits
================  ==================================================================
5 at once         ``imports``, ``imports##2`` ... ``imports##5``
1 at once         ``imports``: the lock of the key, as without a limit
10 a minute       ``imports@@1`` ... ``imports@@10``, kept for a minute after the start
================  ==================================================================

The first permit of a key is its lock. So a client that has a lower limit, or none,
keeps out those that have a higher one: while a deploy changes a limit, at most the
greater of the two hold the key.

No key has the name of a permit: `scripts.keys.key_of` refuses one that ends like this.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.backoff import any_of
from celery_redlock.scripts.keys import text_of
from celery_redlock.wire.permit_reply import permit_replies
from celery_redlock.wire.quorum import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from celery_redlock.locks.limits import Limit, Limits
    from celery_redlock.scripts.keys import Keys
    from celery_redlock.wire.permit_reply import PermitReply
    from celery_redlock.wire.quorum import Ballot


_MS = 1000
_KEYS_REMEMBERED = 1000
_CHOICES_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The answers of the nodes about the permits of one limit.

    Attributes:
        limit: The limit.
        replies: The answer of each node.
        quorum: How many nodes are a majority of all.
    """

    limit: Limit
    replies: Sequence[PermitReply]
    quorum: int

    def holders(self, number: int) -> list[bytes]:
        """Return the token ends of the holders that nodes name for a permit."""
        named = (reply.holder(number) for reply in self.replies)
        return [holder for holder in named if holder]

    @property
    def held(self) -> set[int]:
        """The numbers of the permits that have a holder on a majority."""
        numbers = range(1, self.limit.most + 1)
        if self._is_full_alike():
            return {*numbers}
        return {number for number in numbers if self._is_held(number)}

    @property
    def is_full(self) -> bool:
        """Whether all permits have a holder on a majority."""
        numbers = range(1, self.limit.most + 1)
        return self._is_full_alike() or all(map(self._is_held, numbers))

    def _is_full_alike(self) -> bool:
        """Tell whether a majority names the same holders, and one for each permit."""
        first = self.replies[0]
        alike = sum(reply.text == first.text for reply in self.replies)
        return alike >= self.quorum and first.is_full

    def _is_held(self, number: int) -> bool:
        holders = self.holders(number)
        return any(holders.count(one) >= self.quorum for one in {*holders})

    def due(self) -> list[float]:
        """Return in how many seconds each permit for a start is free, soonest first."""
        ends = []
        for number in range(1, self.limit.most + 1):
            ttls = sorted(reply.ttl_ms(number) for reply in self.replies)
            # A key lives to the end of the millisecond in which its ttl ends.
            left = ttls[len(ttls) - self.quorum]
            ends.append((left + 1) / _MS if left else 0.0)
        return sorted(ends)

    def free_in(self) -> float:
        """Return in how many seconds a permit is free, if none is released.

        It is infinite where no majority knows an end.
        """
        if self.limit.period:
            return self.due()[0]
        ends = sorted(
            math.inf if reply.first_end_ms < 0 else reply.first_end_ms
            for reply in self.replies
        )
        return ends[self.quorum - 1] / _MS


def lock_name(limit: Limit, name: str, keys: Keys) -> str:
    """Return the name of a permit of this limit on the nodes."""
    return keys.call(name) if limit.is_call else keys.lock(name)


def names_of(key: str, limits: Limits, keys: Keys) -> tuple[list[str], list[str]]:
    """Return the names of the locks that a waiter waits for, and of their queues.

    In place of the locks of a limit is a name that no permit has: who leaves the queue
    without a permit always wakes the next one.
    """
    if not limits:
        return keys.locks(key), keys.wait_queues(key)
    locks = [lock_name(limit, limit.name(0), keys) for limit in limits]
    return locks, [keys.wait_queue(limit.key) for limit in limits]


def words_of(
    limits: Limits, keys: Keys, seconds: Callable[[Limit], float] = lambda _: 0.0
) -> list[str | int]:
    """Return head, most and ttl_ms of each limit, for the scripts.

    Args:
        limits: The limits.
        keys: The names of the keys on the nodes.
        seconds: For how long nodes keep a permit; only ACQUIRE_PERMITS reads it.
    """
    words: list[str | int] = []
    for limit in limits:
        head = lock_name(limit, limit.head, keys)
        words += [head, limit.most, round(seconds(limit) * _MS)]
    return words


def occupancies(
    limits: Limits, replies: Iterable[Any], quorum: int
) -> list[Occupancy] | None:
    """Return the occupancy of each limit; None if no majority answered."""
    shapes = [(limit.most, bool(limit.period)) for limit in limits]
    told = permit_replies(replies, shapes)
    if len(told) < quorum:
        return None
    return [
        Occupancy(limit, of_limit, quorum)
        for limit, *of_limit in zip(limits, *told, strict=True)
    ]


class RecentPermits:
    """The permits that this process had last, which are likely to be free.

    A guess may be wrong: nodes decide.
    """

    def __init__(self) -> None:
        self._free: OrderedDict[str, list[int]] = OrderedDict()

    def guess(self, limit: Limit) -> int:
        """Return the number of a permit that may be free."""
        if limit.most == 1:
            return 1
        free = self._free.get(limit.head)
        while free:
            try:
                number = free.pop()
            except IndexError:  # another thread took it
                break
            if number <= limit.most:
                return number
        return any_of(range(1, limit.most + 1))

    def give_back(self, limit: Limit, number: int) -> None:
        """Note a permit that this process has just released."""
        if limit.most == 1:
            return
        free = self._free.setdefault(limit.head, [])
        if number not in free:
            free.append(number)
        try:
            self._free.move_to_end(limit.head)
            if len(self._free) > _KEYS_REMEMBERED:
                self._free.popitem(last=False)
        except KeyError:  # another thread removed it
            pass


class Choice:
    """The permits for which one acquire tries: one of each limit.

    Args:
        limits: The limits.
        permits: What this process had last.

    Attributes:
        limits: The limits.
        numbers: The number of the permit that is tried for, of each limit.
        full: Which permits of a limit have a holder, where all have one.
    """

    def __init__(self, limits: Limits, permits: RecentPermits) -> None:
        self.limits = limits
        self.numbers = [permits.guess(limit) for limit in limits]
        self.full: Occupancy | None = None
        self._has_others = False  # the permits were chosen after a refusal
        self._rounds = 0  # refusals, without a pause
        self._taken: list[set[int]] = [set() for _ in limits]  # by other holders
        self._permits = permits

    @property
    def pairs(self) -> list[tuple[Limit, str]]:
        """The limit and the name of each permit, in the order of the limits."""
        return [
            (limit, limit.name(number))
            for limit, number in zip(self.limits, self.numbers, strict=True)
        ]

    @property
    def held(self) -> list[tuple[Limit, str]]:
        """The permits that are held during the work: the limit and the name of each."""
        return [one for one in self.pairs if not (one[0].period or one[0].is_call)]

    @property
    def call(self) -> list[tuple[Limit, str]]:
        """Limit and name of the lock that copies of a call share, if there is one."""
        return [one for one in self.pairs if one[0].is_call]

    @property
    def starts(self) -> list[tuple[Limit, str]]:
        """The permits for a start: the limit and the name of each."""
        return [one for one in self.pairs if one[0].period]

    @property
    def key(self) -> str:
        """The key of the lease: all permits that are held during the work."""
        return text_of([name for _, name in self.held])

    def locks(self, keys: Keys) -> list[str]:
        """Return the names of these permits on the nodes."""
        return [lock_name(limit, name, keys) for limit, name in self.pairs]

    def give_back(self) -> None:
        """Note that these permits were released."""
        for limit, number in zip(self.limits, self.numbers, strict=True):
            if not limit.period:
                self._permits.give_back(limit, number)

    def choose_again(self, ballot: Ballot, replies: Sequence[Any]) -> None:
        """Choose other permits after a refusal, if there are any."""
        self._has_others = False
        if ballot.final_verdict() is Verdict.HELD:
            place = ballot.top_place
            self._taken[place].add(self.numbers[place])
        found = occupancies(self.limits, replies, ballot.quorum)
        if found is None:
            return
        numbers: list[int] = []
        known = zip(found, self._taken, self.numbers, strict=True)
        for occupancy, taken, tried in known:
            number = _next_of(occupancy, taken, tried, len(ballot.labels))
            if number is None:
                self.full = occupancy
                return
            numbers.append(number)
        self._has_others = 0 not in numbers and numbers != self.numbers
        if self._has_others:
            self.numbers = numbers

    def tries_others(self) -> bool:
        """Tell whether to try for other permits at once; else forget the refusals.

        Permits become free again by and by. Where clients take each other's choice,
        time after time, a pause separates them.
        """
        self._rounds += 1
        if self._has_others and self._rounds < _CHOICES_AT_ONCE:
            return True
        self._rounds, self.full, self._has_others = 0, None, False
        self._taken = [set() for _ in self.limits]
        return False


def _next_of(
    occupancy: Occupancy, taken: set[int], tried: int, nodes: int
) -> int | None:
    """Return a permit that may be free, the tried one first.

    Args:
        occupancy: What nodes say of all permits of a limit.
        taken: The permits that have a holder, as earlier votes have shown.
        tried: The permit that was tried for.
        nodes: How many nodes there are.

    Returns:
        None where a majority says that all permits have a holder; 0 where the votes on
        the others are split.
    """
    if occupancy.is_full:
        return None
    taken = taken | occupancy.held
    takers = {
        number: len(occupancy.holders(number))
        for number in range(1, occupancy.limit.most + 1)
        if number not in taken
    }
    if not takers:
        return None
    least = min(takers.values())
    if least > nodes - occupancy.quorum:
        return 0
    if takers.get(tried) == 0:
        return tried
    return any_of([number for number, count in takers.items() if count == least])
