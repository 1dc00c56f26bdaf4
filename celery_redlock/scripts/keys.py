"""The names of all keys on a node.

=========================  ======================================================
key, under the prefix      content
=========================  ======================================================
``lock:{key}``             the lock; its value names the holder (``locks.lease``)
``call:{task_id}``         lock of a call that has permits: one copy of it runs at
                           a time (``locks.limits.with_copies``)
``line:{key}``             sorted set, the wait queue: waiter -> since when
``next:{key}:{task}``      the call that runs next (``line.successors``)
``order:{key}:{task}``     sorted set: the calls that were published, in their order
``claim:{key}``            the job that waits in the queue (``line.claims``)
``cooldown:{key}``         the job that succeeded a short time ago
``backlog:{key}``          sorted set: refused call -> since when it waits; with
                           ``in_order`` published call -> number (``line.backlog``)
``return:{key}``           sorted set: the same call -> by when it must come back
``number:{key}``           the greatest number that a call has got (``in_order``)
``pace:{key}``             how many runs were counted, and their mean in µs
``slots:{election}``       hash: schedule entry -> until when its slots were sent
``ran:{slot}``             id of the task that runs for this slot of a schedule
``standby:{election}``     hash: standby of this election -> until when
``releases``               hash: token -> release by an operator
                           (``records.forced_releases``)
``doctor:{random}``        what a look at a node has tried to write
``meta``                   hash: what the node must not forget, see below
``wake:{process}``         no key: the channel of one process with waiters
=========================  ======================================================

What a node must not forget are the fields of one hash: to lose a part is to lose all,
and that is noticed.

====================  ===========================================================
``config``            the view that clients must have (``members.view``), or why it has
                      none
``identity``          of the server: another one after each loss of memory
``replid``            the memory that was given this identity: each start and each
                      promotion of a server names it anew
``evicted``           how many keys the process had evicted when it got the identity
``looked``            when a script looked last at its policy, in ms since 1970
``started``           since when the process runs, if it had never voted when it
                      joined, in ms since 1970
``votes``             there, if the node votes for clients with this view
``quarantine_until``  until when the node must not vote, in ms since 1970
``quarantine_ms``     how long that wait is: a clock that was ahead makes none longer
``known:{label}``     since when it knows the member at this place, in ms since 1970
``view``              of a node that is closed: the view that it had
``aborted``           the reconfigurations that were aborted, one per line
``0`` ... ``4095``    the fence counters; ``floor``: the least counter of all
====================  ===========================================================
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from celery_redlock.errors import ConfigurationError

STRIPES = 4096
MOST = 100  # keys that are taken together
MOST_BYTES = 8192  # of one key, or of them all: each of their locks names each
PERMIT = "##"  # between a key and the number of a permit
START = "@@"  # between a key and the number of a permit for a start
_MOST_SHOWN = 4
_NO_KEY = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NO_NAME = re.compile("[\n\ud800-\udfff]")
_PERMIT_NAME = re.compile(f".*(?:{PERMIT}|{START})[0-9]{{1,4}}", re.DOTALL)


def is_permit(name: str) -> bool:
    """Tell whether this is the name of a permit, which no key can have."""
    has_sign = PERMIT in name or START in name  # most have none, and need no search
    return has_sign and _PERMIT_NAME.fullmatch(name) is not None


def fault_of(key: object, *, is_name: bool = False) -> str:
    """Return why this cannot be a key, in a clause, or ``""``.

    Args:
        key: Anything.
        is_name: Whether any name is right that a node can have: of a lock of another
            version, or of another program.
    """
    if not isinstance(key, str):
        return f"it is {type(key).__name__} and not text"
    if not (key if is_name else key.strip()):
        return "it is empty"
    found = (_NO_NAME if is_name else _NO_KEY).search(key)
    if found is None:
        return ""
    is_half = "\ud800" <= found[0] <= "\udfff"
    fault = "has no UTF-8" if is_half else "is not printable"
    return f"the character {found[0]!r} {fault}"


def unusable(key: object, fault: str) -> ConfigurationError:
    """Return the error for what `fault_of` refuses."""
    return ConfigurationError(
        f"The key {key!r:.200} cannot be used: {fault}. Nothing was sent or locked. "
        "Make the key of printable text, such as 'invoice:42'."
    )


def key_of(keys: str | Iterable[str], *, are_names: bool = False) -> str:
    """Return the one text for these keys: each once, sorted, one a line.

    It is the text of the lock wherever that is named, and of one key the key itself.

    Args:
        keys: A key, or several.
        are_names: Whether they may be any names that nodes have, also of permits.

    Raises:
        ConfigurationError: There is no key, one that is no printable text or is the
            name of a permit, more than `MOST`, or more than `MOST_BYTES` in all.
    """
    if type(keys) is str and 0 < len(keys) <= MOST_BYTES and keys.isascii():
        has_sign = PERMIT in keys or START in keys
        if keys.isprintable() and not keys.isspace() and not has_sign:
            return keys  # most are such a one
    given: Any = keys
    is_one = isinstance(given, (str, bytes)) or not isinstance(given, Iterable)
    parts: list[Any] = [given] if is_one else list(given)
    if not parts:
        raise unusable(keys, "it is empty")
    for key in parts:
        if fault := fault_of(key, is_name=are_names):
            raise unusable(key, fault)
        if not are_names and is_permit(key):
            raise ConfigurationError(
                f"The key {shown(key):.200} cannot be used: {PERMIT} or {START} and a "
                "number at the end make it the name of a permit of another key. Add "
                "other text at the end."
            )
    text = text_of(parts)
    several = keys_of(text)
    if len(several) > MOST:
        raise ConfigurationError(
            f"{len(several)} keys are too many to take together: at most {MOST}. Use a "
            "key that covers several of them."
        )
    size = len(text.encode())
    if size > MOST_BYTES and several[1:]:
        raise ConfigurationError(
            f"{len(several)} keys of {size:,} bytes are too long to take together: at "
            f"most {MOST_BYTES:,} bytes. (The lock of each key names all of them.) Use "
            "shorter keys, or a key that covers several of them."
        )
    if size > MOST_BYTES:
        raise ConfigurationError(
            f"A key of {size:,} bytes is too long: at most {MOST_BYTES:,} bytes. Use a "
            "shorter key, such as a hash of the text."
        )
    return text


def text_of(keys: Iterable[str]) -> str:
    """Return the one text for keys that were checked before: see ``key_of``."""
    return "\n".join(sorted(set(keys)))


def keys_of(key: str) -> list[str]:
    """Return the keys of a text that ``key_of`` has made."""
    return key.split("\n")


def shown(key: str) -> str:
    """Return the keys of such a text for a message: ``'a'``, or ``'a' and 'b'``.

    Of many, the first three, and how many more there are.
    """
    several = list(map(repr, keys_of(key)))
    if len(several) > _MOST_SHOWN:
        rest = len(several) - _MOST_SHOWN + 1
        several[_MOST_SHOWN - 1 :] = [f"{rest} more"]
    return " and ".join(several)


def stripe_of(key: str) -> int:
    """Return the number of the fence counter that one key shares with others.

    It is a field of the hash ``meta``, so that the memory for counters is bounded.
    """
    return zlib.crc32(key.encode()) % STRIPES


def stripes_of(key: str) -> list[int]:
    """Return the stripe of each of these keys."""
    if "\n" in key:
        return [stripe_of(one) for one in key.split("\n")]
    return [stripe_of(key)]


def _each(head: str, key: str) -> list[str]:
    """Return one name with this prefix for each key."""
    if "\n" in key:  # most have one key, and pay for no more
        return [head + one for one in key.split("\n")]
    return [head + key]


def _last(task: str) -> str:
    """Return the name of a task without colons: the key before it may have them."""
    return task.replace("%", "%25").replace(":", "%3A")


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of all keys under one prefix.

    Attributes:
        prefix: ``redlock_prefix``: the start of every name.
    """

    prefix: str

    @property
    def meta(self) -> str:
        """The name of what the node must not forget."""
        return f"{self.prefix}:meta"

    @property
    def releases(self) -> str:
        """The name of the latest releases by operators."""
        return f"{self.prefix}:releases"

    def lock(self, key: str) -> str:
        """Return the name of the lock of one key."""
        return f"{self.prefix}:lock:{key}"

    def locks(self, key: str) -> list[str]:
        """Return the names of the locks of these keys."""
        return _each(f"{self.prefix}:lock:", key)

    def call(self, task_id: str) -> str:
        """Return the name of the lock that copies of one call share."""
        return f"{self.prefix}:call:{task_id}"

    def wait_queue(self, key: str) -> str:
        """Return the name of the wait queue of one key."""
        return f"{self.prefix}:line:{key}"

    def wait_queues(self, key: str) -> list[str]:
        """Return the names of the wait queues of these keys."""
        return _each(f"{self.prefix}:line:", key)

    def successor(self, key: str, task: str) -> str:
        """Return the name of the successor register of this key and task."""
        return f"{self.prefix}:next:{key}:{_last(task)}"

    def order(self, key: str, task: str) -> str:
        """Return the name of the published calls of this key and task."""
        return f"{self.prefix}:order:{key}:{_last(task)}"

    def claim(self, key: str) -> str:
        """Return the name of the claim of a queued call."""
        return f"{self.prefix}:claim:{key}"

    def cooldown(self, key: str) -> str:
        """Return the name of the cool-down after a success."""
        return f"{self.prefix}:cooldown:{key}"

    def backlogs(self, key: str) -> list[str]:
        """Return the names of the backlogs of these keys."""
        return _each(f"{self.prefix}:backlog:", key)

    def returns(self, key: str) -> list[str]:
        """Return the deadline keys of these backlogs."""
        return _each(f"{self.prefix}:return:", key)

    def number(self, key: str) -> str:
        """Return the name of the greatest number given in the backlog of a key."""
        return f"{self.prefix}:number:{key}"

    def paces(self, key: str) -> list[str]:
        """Return the names of the records of how long runs of these keys take."""
        return _each(f"{self.prefix}:pace:", key)

    def trial(self, unique: str) -> str:
        """Return the name of a key that one look at a node writes for a second."""
        return f"{self.prefix}:doctor:{unique}"

    def slots(self, election: str) -> str:
        """Return the name of beat's record of the slots that it sent."""
        return f"{self.prefix}:slots:{election}"

    def slot_run(self, slot: str) -> str:
        """Return the name of the record of the task that runs for this slot."""
        return f"{self.prefix}:ran:{slot}"

    def standby(self, election: str) -> str:
        """Return the name of the list of standbys of this election."""
        return f"{self.prefix}:standby:{election}"

    def channel(self, process: str) -> str:
        """Return the channel on which nodes wake the waiters of this process."""
        return f"{self.prefix}:wake:{process}"
