"""Tell what a script reads and changes, before it runs.

A store locks this, loads it in one round trip, and runs the script on it. What a script
only reads in order to tell it (the holders of all permits, say) is loaded when the
script asks for it, and not locked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Needs", "needs_of"]

# The fields of the hash `meta` that decide whether a node votes.
_STATE = {b"config", b"run_id", b"votes", b"identity", b"quarantine_until", b"floor"}
_MEMBERSHIP = {
    *("join", "note", "sync", "initialize", "close", "open", "abort", "reopen"),
    "counters",
}
_READS = {
    *("inspect", "inspect_permits", "counters", "list_releases", "list_standbys"),
    *("read_backlog", "read_slots"),
}
_FIRST_STRIPE = {"acquire": 6, "acquire_permits": 6, "restore": 5, "raise_fence": 3}
_META_IS_LAST = {*_FIRST_STRIPE, "claim", "keep_claim", "read_slots"}
# Scripts of a holder on what it takes or has: where that ends in their KEYS.
_OF_HOLDER = {
    **dict.fromkeys(("acquire", "acquire_permits", "restore", "raise_fence"), -1),
    **dict.fromkeys(("claim", "keep_claim", "release_claim"), 1),
    "extend": -2,
}
# Scripts on sorted sets that may have 10,000 members: how many of their KEYS are those.
_LARGE = {"join_backlog": 2, "leave_backlog": 1_000, "read_backlog": 1}


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


def needs_of(script: str, keys: Sequence[bytes], args: Sequence[bytes]) -> Needs:
    """Return what a script of ``core.scripts`` needs, by its KEYS and ARGV."""
    is_read = script in _READS
    needs = Needs(is_read=is_read, may_be_late=is_read or script == "release")
    own = list(keys)
    if script == "release":
        half = len(own) // 2
        needs.own.update(own[:half])
        needs.rare.update(own[half:])
    elif script in _OF_HOLDER:
        needs.own.update(own[: _OF_HOLDER[script]])
    if script in _MEMBERSHIP:
        needs.names.update(own)
        needs.exclusive.update(own)
        own = []
    elif script == "inspect_permits":
        own = []
    elif script == "extend":
        own, meta = own[:-2], own[-2]
        _vote(needs, meta)
    elif script in _META_IS_LAST:
        meta = own.pop()
        _vote(needs, meta)
        stripes = args[_FIRST_STRIPE.get(script, len(args)) :][: len(own)]
        needs.fields[meta].update(stripes)
        needs.exclusive.update(b"%b\n%b" % (meta, stripe) for stripe in stripes)
    needs.exclusive.update(own)
    large = _LARGE.get(script, 0)
    needs.large.update((name, set(args[:1])) for name in own[:large])
    needs.names.update(own[large:])
    if is_read:
        needs.exclusive.clear()
        needs.shared.clear()
    return needs


def _vote(needs: Needs, meta: bytes) -> None:
    """The vote depends on the state of the node, and must not outlast its change."""
    needs.shared.add(meta)
    needs.fields[meta] = set(_STATE)
