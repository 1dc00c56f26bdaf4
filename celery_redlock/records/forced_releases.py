"""The latest releases by operators, for ``redlock show`` and the Django admin.

A node keeps the latest 100 records (``locks.forced_release``), for 30 days at most. No
safety rests on them: without a record, a live holder finds its lock gone, and takes it
again or loses it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from celery_redlock.locks.forced_release import ForcedRelease
from celery_redlock.locks.lease import new_base
from celery_redlock.locks.limits import Limit
from celery_redlock.scripts import LIST_RELEASES
from celery_redlock.scripts.keys import keys_of
from celery_redlock.wire.quorum import VoteKind
from celery_redlock.wire.requests import all_answered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.locks.lease import Holder
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.scripts.keys import Keys


_MOST = 100
_KEEP = 30 * 86400.0  # seconds
_MS = 1000


@dataclass(frozen=True, slots=True)
class Releases:
    """The latest releases by operators, as the nodes remember them.

    Attributes:
        found: Those that any node has told, the latest first.
        is_whole: Whether a majority of the nodes answered. Else there may be others.
    """

    found: list[ForcedRelease]
    is_whole: bool


def force_release_words(
    keys: Keys, key: str, holder: Holder | None, proof: str, record: ForcedRelease
) -> tuple[tuple[str, ...], tuple[str | int, ...]]:
    """Return KEYS and ARGV of FORCE_RELEASE.

    Args:
        keys: The names of the keys on the nodes.
        key: The name of the lock; of several keys that were taken together, all.
        holder: The holder that is to find the record; None for another program.
        proof: The token of the holder, or a value of another program.
        record: The record.
    """
    # Its holder keeps its lock without a permit for a start, and needs no record.
    looks = holder is not None and not holder.is_kept
    permits = [holder.permit(name) if holder else None for name in keys_of(key)]
    waited_for = [
        permit[0].key if permit else name
        for name, permit in zip(keys_of(key), permits, strict=True)
    ]
    queues = map(keys.wait_queue, waited_for)
    name = proof if looks else new_base()
    names = (*keys.locks(key), *queues, keys.releases)
    return names, (proof, name, record.text(), round(_KEEP * _MS), _MOST)


def forced_releases(redlock: Redlock, key: str | None = None) -> Releases:
    """Return the latest releases by operators. Changes nothing.

    With a key: those of this key, alone or with others, and of its permits. A node that
    has lost its memory has lost its records, too.
    """
    request = redlock.nodes.ask(
        LIST_RELEASES, [redlock.keys.releases], done_when=all_answered
    )
    ballot = request.ballot
    known: dict[bytes, ForcedRelease] = {}
    for index in ballot.indexes(VoteKind.GRANTED):
        for name, one in _pairs(request.replies[index][1:]):
            before = known.get(name)
            nodes = one.nodes + (before.nodes if before else 0)
            known[name] = replace(max(before or one, one, key=_at), nodes=nodes)
    found = [one for one in known.values() if one.nodes or one.killed]
    ours = [one for one in found if key is None or _is_of(one, key)]
    ours.sort(key=_at, reverse=True)
    return Releases(ours, is_whole=ballot.granted >= ballot.quorum)


def _pairs(words: Sequence[bytes]) -> list[tuple[bytes, ForcedRelease]]:
    texts = [word.decode(errors="replace") for word in words[1::2]]
    return list(zip(words[::2], map(ForcedRelease.parse, texts), strict=True))


def _is_of(release: ForcedRelease, key: str) -> bool:
    limits = Limit(key, 1), Limit(key, 1, 1.0)
    names = keys_of(release.key)
    return any(limit.number(name) for limit in limits for name in names)


def _at(release: ForcedRelease) -> float:
    return release.at
