"""Tell what a script reads and changes, before it runs.

A store locks this, loads it in one round trip, and runs the script on it. The script
says it itself: in its table of KEYS, a name is followed by what it does with the key.

=========  ===========================================================================
r          It reads the key.
w          It changes the key.
own        It changes a key of which the caller is or becomes the holder.
rare       It changes a key that most often does not exist.
late       The change may be lost in a crash: the key has a ttl.
large      A sorted set that may have 10,000 members. The script asks for the least of
           them, for their number, and for the member that is the first of its ARGV.
vote       It reads the fields of the hash that decide whether the node votes.
stripes    It raises the fields of the hash that its ARGV calls stripes, one each lock.
           It does the same for all numbers that are below what it writes there.
seldom     It most often does not look at the key: loaded when the script asks for it.
unused     It does not look at the key.
=========  ===========================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from celery_redlock.scripts import ALL_SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Sequence

_TABLE = re.compile(r"^-- KEYS (.*\n(?:--  .*\n)*)", re.MULTILINE)
_KEY = re.compile(r"\w+ \[([\w, ]+)\]( of each)?")
_STRIPES = re.compile(r"(\d+)\.\.\. stripes")
_CHANGES = {"w", "own", "rare", "stripes"}
_NOT_LOADED = {"seldom", "unused"}
_PARTS = {"vote", "stripes"}
_SOURCES = {script.name: script.source for script in ALL_SCRIPTS}
_VOTING = " ".join(source for source in _SOURCES.values() if "[vote" in source)
_READ = re.findall(r"(?:read_state\(|'HMGET', )meta, ([^)]*)\)", _VOTING)

STATE = frozenset(one.encode() for one in re.findall(r"'(\w+)'", " ".join(_READ)))
"""The fields of a hash by which the scripts decide whether a node votes."""


@dataclass(slots=True)
class Needs:
    """The keys that one script reads and changes, or several that run together.

    Attributes:
        exclusive: Keys that no other transaction may use meanwhile.
        shared: What others may read meanwhile, and not change.
        names: The keys to load.
        states: The hashes of which a part is loaded: `STATE`.
        stripes: More of their fields, which no other transaction may use meanwhile.
        large: Sorted sets that are better not loaded, and the members in question. A
            store that can count them itself loads their heads and these members.
        own: Keys of which the caller is or becomes the holder: others rarely change
            them, so a store may remember how it left them.
        rare: Keys that most often do not exist: wait queues at a release.
        is_read: Whether nothing is changed.
        may_be_late: Whether the changes may be lost in a crash: only releases are.
    """

    exclusive: set[bytes] = field(default_factory=set)
    shared: set[bytes] = field(default_factory=set)
    names: set[bytes] = field(default_factory=set)
    states: set[bytes] = field(default_factory=set)
    stripes: dict[bytes, set[bytes]] = field(default_factory=dict)
    large: dict[bytes, set[bytes]] = field(default_factory=dict)
    own: set[bytes] = field(default_factory=set)
    rare: set[bytes] = field(default_factory=set)
    is_read: bool = True
    may_be_late: bool = True

    @property
    def parts(self) -> set[bytes]:
        """The hashes of which no more than a part is loaded."""
        return self.states - self.names

    @property
    def fields(self) -> dict[bytes, frozenset[bytes]]:
        """Of each hash of which a part is loaded, the fields to load."""
        return {name: STATE.union(self.stripes.get(name, ())) for name in self.states}

    @property
    def locked(self) -> set[bytes]:
        """Names of the exclusive keys; for a stripe: its hash, line feed, its own."""
        pairs = [(name, one) for name, its in self.stripes.items() for one in its]
        return self.exclusive.union([b"%b\n%b" % pair for pair in pairs])

    def counters(self, name: bytes) -> list[tuple[bytes, bytes]]:
        """Return name and field of the cells that are stripes of a hash."""
        return [(name, b"." + stripe) for stripe in self.stripes.get(name, ())]

    def add(self, script: str, keys: Sequence[bytes], args: Sequence[bytes]) -> None:
        """Add what a script of ``scripts`` needs, by its KEYS and ARGV."""
        plan = _plan_of(script, len(keys))
        self.is_read = self.is_read and plan.is_read
        self.may_be_late = self.may_be_late and plan.may_be_late
        for i in plan.names:  # most often one: quicker than `update`
            self.names.add(keys[i])
        for i in plan.own:
            self.own.add(keys[i])
        self.rare.update([keys[i] for i in plan.rare])
        for i in plan.large:
            self.large.setdefault(keys[i], set()).update(args[:1])
        if not plan.is_read:
            for i in plan.exclusive:
                self.exclusive.add(keys[i])
        for i in plan.states:
            name = keys[i]
            self.states.add(name)
            if plan.stripes:
                stripes = args[plan.stripes : plan.stripes + len(plan.own)]
                self.stripes.setdefault(name, set()).update(stripes)
            if not plan.is_read:
                # What is decided must not outlast a change of the node.
                self.shared.add(name)


class _Plan(NamedTuple):
    """The needs of a script with so many KEYS: the places of the keys.

    Attributes:
        names, exclusive, large, own, rare, states, is_read, may_be_late: As in `Needs`.
        stripes: Where the stripes are in its ARGV, one for each of `own`, counted from
            0; 0: it has none.
    """

    names: list[int]
    exclusive: list[int]
    large: list[int]
    own: list[int]
    rare: list[int]
    states: list[int]
    stripes: int
    is_read: bool
    may_be_late: bool


@lru_cache(maxsize=1024)
def _plan_of(script: str, count: int) -> _Plan:
    """Return the needs of a script with so many KEYS, by its table of them."""
    source = _SOURCES[script]
    (table,) = _TABLE.findall(source)
    found = [(set(use.split(", ")), each) for use, each in _KEY.findall(table)]
    # The first of them are there for each lock.
    first = sum(bool(each) for _, each in found[1:]) + ("1... " in table)
    locks = (count - len(found) + first) // max(1, first)
    uses = [use for use, _ in found[:first] for _ in range(locks)]
    uses += [use for use, _ in found[first:]]
    stripes = _STRIPES.search(source)
    is_read = not any(use & _CHANGES for use in uses)
    loaded = [(i, use) for i, use in enumerate(uses) if not use & _NOT_LOADED]
    whole = [(i, use) for i, use in loaded if not use & _PARTS]
    return _Plan(
        names=[i for i, use in whole if "large" not in use],
        exclusive=[i for i, _ in whole],
        large=[i for i, use in whole if "large" in use],
        own=[i for i, use in whole if "own" in use],
        rare=[i for i, use in whole if "rare" in use],
        states=[i for i, use in loaded if use & _PARTS],
        stripes=int(stripes[1]) - 1 if stripes else 0,
        is_read=is_read,
        may_be_late=is_read or any("late" in use for use in uses),
    )
