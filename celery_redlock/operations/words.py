"""Words for operators, on a terminal and on a page: durations, permits, nodes."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.command import COMMAND
from celery_redlock.basics.text import on_nodes
from celery_redlock.basics.timing import duration
from celery_redlock.operations.inspect import NodeState, NodeStatus
from celery_redlock.scripts.keys import keys_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.locks.lease import Holder
    from celery_redlock.locks.limits import Limit
    from celery_redlock.operations.scan import Scan
    from celery_redlock.records.forced_releases import Releases

UNREADABLE = "unreadable: of another program"
"""The task of a lock whose value this package has not written."""


def time_left(seconds: float) -> str:
    """Return the time until a lock ends: ``12 s``, or of one without a ttl, that."""
    return "never ends" if seconds == math.inf else duration(seconds)


def expiry(seconds: float) -> str:
    """Return when a lock ends that has so many seconds left, as a clause."""
    if seconds == math.inf:
        return f"never: it has no ttl. Only `{COMMAND} release` ends it"
    return f"in {duration(seconds)}, unless renewed"


def instant(seconds: float) -> str:
    """Return an instant, which is given in seconds since 1970."""
    at = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def plural(number: int, thing: str) -> str:
    """Return ``1 lock``, ``2 locks``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def votes_text(votes: int, nodes: int, needed: int = 0) -> str:
    """Return ``2 of 3 nodes vote``; of a single node or a store, whether it votes.

    Args:
        votes: How many nodes vote.
        nodes: How many there are.
        needed: How many must vote, if the text is to say so.
    """
    if nodes == 1:
        return f"the node {'votes' if votes else 'does not vote'}"
    return f"{votes} of {nodes} nodes vote{f', {needed} are needed' * bool(needed)}"


def few_can_tell(nodes: int) -> str:
    """Return the clause that a majority of these nodes cannot tell what is held."""
    return "the node cannot tell" if nodes == 1 else "too few nodes can tell"


def unknown_text(seen: Scan) -> str:
    """Return the text of a scan without a majority; ``""`` if it has one."""
    nodes = seen.nodes
    if nodes.most_can_tell:
        return ""
    if len(nodes) == 1:
        return "The node cannot tell which locks are held."
    return (
        "Too few nodes can tell which locks are held: "
        f"{nodes.can_tell} of {len(nodes)} can, {nodes.quorum} are needed."
    )


def selection(seen: Scan) -> str:
    """Return the clause that names the keys that were looked at; "" for all."""
    return "" if seen.pattern == "*" else f" whose key matches {seen.pattern}"


def held_text(seen: Scan) -> str:
    """Return how many locks are held, of those that were looked at."""
    return f"{plural(len(seen.held), 'lock')} held{selection(seen)}"


def held_sentences(seen: Scan) -> list[str]:
    """Return how many locks are held for certain, and how many may be."""
    held, nodes, said = held_text(seen), seen.nodes, []
    if nodes.most_can_tell:
        said.append(f"{held}, as seen {on_nodes(nodes.can_tell, len(nodes))}.")
    elif seen.held:
        said.append(f"{held} for certain; there may be others.")
    if seen.possible:
        some = plural(len(seen.possible), "lock")
        said.append(f"{some} may be held: that depends on the nodes that cannot tell.")
    return said


def unknown_releases(releases: Releases, nodes: int) -> str:
    """Return that operators may have released more than is known; ``""`` if not."""
    if releases.is_whole:
        return ""
    others = "other " if releases.found else ""
    fact = f"It cannot be told whether there were {others}releases by operators"
    return f"{fact}: {few_can_tell(nodes)}."


def age_of(holder: Holder) -> float | None:
    """Return the seconds since a holder started, by its clock and ours."""
    if not holder.started:
        return None
    return max(0.0, SYSTEM_CLOCK.wall() - holder.started)


def since(holder: Holder, at: Callable[[float], str] = instant) -> str:
    """Return when a holder started, or ``""`` if that is not known.

    And how long ago, unless its clock is ahead of ours.
    """
    age = age_of(holder)
    if age is None:
        return ""
    return f"{at(holder.started)}{f' ({duration(age)} ago)' * bool(age)}"


def keys_beside(holder: Holder, key: str) -> list[str]:
    """Return the other keys that the holder of this key took together with it."""
    return [one for one in keys_of(holder.whole_key(key)) if one != key]


def permit_text(permit: tuple[Limit, int] | None) -> str:
    """Return ``permit 3 of 5``, or ``start 2 of 10 in 60 s``; "" for a plain lock."""
    if permit is None:
        return ""
    limit, number = permit
    if limit.period:
        return f"start {number} of {limit.most} in {limit.period:g} s"
    return f"permit {number} of {limit.most}"


def state_words(node: NodeStatus) -> tuple[str, str]:
    """Say whether a node votes, and if not, why.

    Returns:
        The words, and how they are shown: ``good``, ``warning`` or ``bad``.
    """
    state, words = node.state, node.state.value
    if state is NodeState.VOTES:
        return words, "good"
    if state is NodeState.QUARANTINED:
        return f"{words}, {duration(node.wait)} left", "warning"
    if node.waits_for_a_client:
        return "votes as soon as a client asks", "warning"
    if state in (NodeState.NEW, NodeState.UNSYNCED):
        return words, "warning"
    if state in (NodeState.UNFIT, NodeState.REFUSES, NodeState.SILENT):
        words = node.reason.partition(";")[0]
    return words, "bad"
