"""The models of the specification, their bounds, and the rules to take away."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """One exhaustive search of a model with all of its rules.

    Attributes:
        model: The name of the file, without its suffix.
        bounds: What is searched, in words.
        defines: The bounds, as definitions for the preprocessor.
        is_large: Whether it belongs to the larger bounds only.
    """

    model: str
    bounds: str
    defines: tuple[str, ...] = ()
    is_large: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the protocol, which Spin must miss.

    Attributes:
        name: The rule is taken away by ``-DNO_<name>``.
        model: The model that has the rule.
        text: The rule, in one sentence.
        why: What goes wrong without it, in one sentence.
        defines: More definitions for the search without the rule.
        depth: The longest history to search, in depth; 0 searches breadth first, which
            finds a shortest one, and takes more memory.
    """

    name: str
    model: str
    text: str
    why: str
    defines: tuple[str, ...] = ()
    depth: int = 0

    @property
    def all_defines(self) -> tuple[str, ...]:
        """Return the definitions of the search without the rule."""
        return (*self.defines, f"NO_{self.name}")


RUNS = [
    Run("lock", "two clients, drifting clocks, losses of memory without end"),
    Run(
        "lock", "the same, and the clock of one node jumps; A has all nodes", ("JUMPS",)
    ),
    Run("lock", "the same without jumps: the lock can be had again", ("LIVENESS",)),
    Run("fence", "two attempts, counters of 0 and 1, one loss of memory"),
    Run("keys", "two clients, two keys, any of them or both"),
    Run("keys", "three clients, two permits", ("CLIENTS=3", "ONE_NAME_EACH")),
    Run("reconfiguration", "three nodes become two, one of them new; a loss of memory"),
    Run(
        "reconfiguration",
        "the same, and two losses of memory",
        ("LOSSES=2",),
        is_large=True,
    ),
    Run(
        "reconfiguration",
        "three nodes become three, one of them new; a loss of memory",
        ("NEW=14",),
        is_large=True,
    ),
    Run("lock", "two clients, a ttl of four ticks", ("TTL=4",), is_large=True),
    Run("fence", "two attempts, counters to 2", ("COUNTERS=2",), is_large=True),
    Run("keys", "three clients, two keys", ("CLIENTS=3",), is_large=True),
]

_LIVE = ("LIVENESS",)

RULES = [
    Rule(
        "MAJORITY",
        "lock",
        "A client has the lock when a majority of the nodes has granted it.",
        "Two sets of nodes that are no majority need not share a node.",
    ),
    Rule(
        "FREE_CHECK",
        "lock",
        "A node grants the lock only while it has no key of it.",
        "The node that both majorities share says yes to both.",
    ),
    Rule(
        "DRIFT",
        "lock",
        "The validity of a lease is shorter than the ttl on the nodes, by the drift.",
        "A node whose clock is fast gives the lock away while the holder trusts it.",
    ),
    Rule(
        "COUNT_FROM_FIRST_SEND",
        "lock",
        "The validity counts from before the first send, not from the last answer.",
        "The keys on the nodes are older than the holder believes.",
    ),
    Rule(
        "RENEWAL_IN_TIME",
        "lock",
        "A renewal counts only while the lease is still valid.",
        "A lease that has ended is valid again.",
    ),
    Rule(
        "TOKEN",
        "lock",
        "A release acts only on a key with the token of its own attempt.",
        "A late release of an attempt that is over deletes the key of the next holder.",
    ),
    Rule(
        "RESTORE_ONLY_FREE",
        "lock",
        "A restore never overwrites the key of another client.",
        "The node that two majorities share changes sides.",
    ),
    Rule(
        "VOTE_TO_RENEW",
        "lock",
        "A node that does not vote and is without the key counts in no renewal.",
        "The lease rests on a node that has forgotten its vote for another client.",
    ),
    Rule(
        "QUARANTINE",
        "lock",
        "A node that lost its memory does not vote at first.",
        "It grants a lock that it had granted before.",
    ),
    Rule(
        "LONG_QUARANTINE",
        "lock",
        "It does not vote for longer than any lock lives.",
        "The lock that it had granted before is still valid.",
    ),
    Rule(
        "SPARE_VOTE",
        "lock",
        "A lock survives the jump of one clock only if one node more than a majority "
        "granted it.",
        "The node whose clock jumped is the only one that two majorities share.",
        ("JUMPS",),
    ),
    Rule(
        "TTL",
        "lock",
        "Every key on a node ends by itself.",
        "The keys of a client that died keep all others out for ever.",
        _LIVE,
    ),
    Rule(
        "RELEASE_OF_A_FAILED_ATTEMPT",
        "lock",
        "An attempt that fails releases what it got.",
        "A client that tries again is kept out by the keys of its own last attempt.",
        _LIVE,
    ),
    Rule(
        "RAISE_NEEDS_KEY",
        "fence",
        "A raise acts only while the node's key is still the attempt's.",
        "It counts a number that another attempt has brought to the node.",
    ),
    Rule(
        "RAISE_NEEDS_NUMBER",
        "fence",
        "A raise counts only on a node whose number was part of the greatest one.",
        "The node had granted a greater number, which the attempt does not know.",
    ),
    Rule(
        "SETTLEMENT",
        "fence",
        "A fence is final when a majority has it, or was raised to it.",
        "The next majority does not know the greatest number.",
    ),
    Rule(
        "COUNTING_UP",
        "fence",
        "Each grant adds one to the counter of the node.",
        "Two attempts get the same number.",
    ),
    Rule(
        "QUARANTINE",
        "fence",
        "A node that lost its counters does not vote at first.",
        "It counts from 0 again, and its votes no longer tell of earlier fences.",
    ),
    Rule(
        "COUNTERS_TAKEN_OVER",
        "fence",
        "A node that lost its counters takes over those of r others.",
        "It counts on from 0 beside a node that has missed the last grants.",
    ),
    Rule(
        "COUNTERS_AT_THE_END",
        "fence",
        "It reads them at the end of its quarantine.",
        "An attempt from before the loss is granted after they were read.",
    ),
    Rule(
        "ALL_OR_NONE",
        "keys",
        "A node grants all keys of an attempt or none.",
        "An attempt counts votes for keys that it did not get.",
    ),
    Rule(
        "RESTORE_OF_EVERY_KEY",
        "keys",
        "A restore writes all keys of the lease.",
        "A node that counts for the lease is without one of its keys.",
    ),
    Rule(
        "RELEASE_OF_EVERY_KEY",
        "keys",
        "A release deletes all keys of the attempt in one step.",
        "One key stays locked after its holder has ended.",
    ),
    Rule(
        "NAMES",
        "keys",
        "A permit is a lock on one of n names; nodes do not count holders.",
        "Counters of three nodes admit three holders, each with another majority.",
        ("CLIENTS=3",),
    ),
    Rule(
        "EPOCHS",
        "reconfiguration",
        "A node votes only for clients of its own epoch.",
        "Nodes that have opened grant locks of the old epoch. Its fences were read "
        "before.",
    ),
    Rule(
        "FIRST_MEMBERS",
        "reconfiguration",
        "`init` lets only the first servers of a deployment vote at once.",
        "A server that took the place of another one, which had granted a lock, grants "
        "it again.",
    ),
    Rule(
        "CLOSED_RENEWS_NOTHING",
        "reconfiguration",
        "A closed node renews no lease.",
        "A lease of the old epoch outlives the wait.",
        ("LOSSES=0",),
    ),
    Rule(
        "WAIT_WHEN_CLOSED",
        "reconfiguration",
        "New nodes open when the old ones have been closed for a whole quarantine.",
        "A lease of the old epoch is still valid.",
        ("LOSSES=0",),
    ),
    Rule(
        "MAJORITY_CLOSED",
        "reconfiguration",
        "New nodes open when a majority of the old ones is closed.",
        "Of four old nodes two are left, confirm a third that lost its memory, and "
        "grant a lock.",
        ("LARGE_OLD",),
        depth=16,
    ),
    Rule(
        "CLOSE_COMPARES",
        "reconfiguration",
        "A node is closed only if its view is the one that the plan was made from.",
        "Nodes count that were closed one after another, and never together.",
    ),
    Rule(
        "PLANNED_IDENTITY",
        "reconfiguration",
        "A node opens only if it is closed for the plan, and is the planned server.",
        "A node that opened and lost its memory opens again, without its lock.",
        ("NEW=14",),
    ),
    Rule(
        "MARKS",
        "reconfiguration",
        "Old nodes vote again when a majority of the new ones is marked.",
        "The operator takes the change back, and a late message opens the new nodes.",
        ("LOSSES=0",),
    ),
    Rule(
        "MARKS_STAY",
        "reconfiguration",
        "A node that votes again keeps the mark.",
        "A late message closes it for the change that was taken back.",
    ),
    Rule(
        "FENCES_TAKEN_OVER",
        "reconfiguration",
        "New nodes open with the counters of the old ones.",
        "The first fence of the new epoch is not greater than the last one of the old.",
        ("LOSSES=0",),
    ),
]
