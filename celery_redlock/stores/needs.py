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
seldom     It most often does not look at the key: loaded when the script asks for it.
unused     It does not look at the key.
=========  ===========================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from celery_redlock.scripts import ALL_SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Needs", "needs_of"]

_TABLE = re.compile(r"^-- KEYS (.*\n(?:--  .*\n)*)", re.MULTILINE)
_KEY = re.compile(r"\w+ \[([\w, ]+)\]( of each)?")
_STRIPES = re.compile(r"(\d+)\.\.\. stripes")
_STATE = re.compile(r"(?:read_state\(|'HMGET', )meta, ([^)]*)\)")
_CHANGES = {"w", "own", "rare", "stripes"}
_NOT_LOADED = {"seldom", "unused"}
_SOURCES = {script.name: script.source for script in ALL_SCRIPTS}


@dataclass(slots=True)
class Needs:
    """The keys that one script reads and changes, or several that run together.

    Attributes:
        exclusive: What no other transaction may use meanwhile: names of keys, and
            fields of hashes: name, line feed, field.
        shared: What others may read meanwhile, and not change.
        names: The keys to load.
        fields: The hashes of which a part is loaded: name -> fields.
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
    fields: dict[bytes, set[bytes]] = field(default_factory=dict)
    large: dict[bytes, set[bytes]] = field(default_factory=dict)
    own: set[bytes] = field(default_factory=set)
    rare: set[bytes] = field(default_factory=set)
    is_read: bool = True
    may_be_late: bool = True

    def add(self, other: Needs) -> None:
        """Take in what another script needs."""
        self.exclusive |= other.exclusive
        self.shared |= other.shared
        self.names |= other.names
        self.own |= other.own
        self.rare |= other.rare
        for ours, theirs in (self.fields, other.fields), (self.large, other.large):
            for name, members in theirs.items():
                ours[name] = ours.get(name, set()) | members
        self.is_read = self.is_read and other.is_read
        self.may_be_late = self.may_be_late and other.may_be_late


class _Table(NamedTuple):
    """The table of KEYS of a script.

    Attributes:
        of_each: What it does with the keys that it has for each lock, in turn.
        single: What it does with the keys behind them.
        stripes: Where the stripes are in its ARGV, counted from 0.
        state: The fields that decide whether a node votes.
    """

    of_each: list[set[str]]
    single: list[set[str]]
    stripes: int
    state: set[bytes]

    def each(self, keys: Sequence[bytes]) -> list[tuple[bytes, set[str]]]:
        """Return these KEYS, and what the script does with each."""
        locks = (len(keys) - len(self.single)) // max(1, len(self.of_each))
        uses = [use for use in self.of_each for _ in range(locks)]
        return list(zip(keys, [*uses, *self.single], strict=True))


@cache
def _table_of(script: str) -> _Table:
    """Read the table of a script."""
    source = _SOURCES[script]
    (table,) = _TABLE.findall(source)
    found = [(set(use.split(", ")), each) for use, each in _KEY.findall(table)]
    first = sum(bool(each) for _, each in found[1:]) + ("1... " in table)
    stripes = _STRIPES.search(source)
    fields = re.findall(r"'(\w+)'", " ".join(_STATE.findall(source)))
    return _Table(
        [use for use, _ in found[:first]],
        [use for use, _ in found[first:]],
        int(stripes[1]) - 1 if stripes else 0,
        {name.encode() for name in fields},
    )


def needs_of(script: str, keys: Sequence[bytes], args: Sequence[bytes]) -> Needs:
    """Return what a script of ``scripts`` needs, by its KEYS and ARGV."""
    table = _table_of(script)
    uses = table.each(keys)
    is_read = not any(use & _CHANGES for _, use in uses)
    is_late = any("late" in use for _, use in uses)
    needs = Needs(is_read=is_read, may_be_late=is_read or is_late)
    locks = sum("own" in use for _, use in uses)
    for name, use in uses:
        if use & _NOT_LOADED:
            continue
        if use & {"vote", "stripes"}:
            # What is decided must not outlast a change of the node.
            needs.shared.add(name)
            fields = needs.fields.setdefault(name, set())
            fields |= table.state if "vote" in use else set()
            if "stripes" in use:
                stripes = args[table.stripes :][:locks]
                fields.update(stripes)
                needs.exclusive.update(b"%b\n%b" % (name, one) for one in stripes)
            continue
        needs.exclusive.add(name)
        if "large" in use:
            needs.large[name] = set(args[:1])
        else:
            needs.names.add(name)
        if "own" in use:
            needs.own.add(name)
        if "rare" in use:
            needs.rare.add(name)
    if is_read:
        needs.exclusive.clear()
        needs.shared.clear()
    return needs
