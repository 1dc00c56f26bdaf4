"""One renewal of a lease: extend where the lock is, restore where it is missing.

::

    EXTEND to all ──► majority yes ───────────────────────────► renewed
                │         └─ nodes without the key ──► RESTORE, not waited for
                ├─► no majority, but nodes without the key
                │         └──► RESTORE ──► majority of both ──► renewed
                ├─► no majority, and an operator released it ─► lost
                ├─► no majority, and nodes told a newer view ─► the same once more
                └─► neither ──────────────────────────────────► not renewed

A majority must say yes AND the lease must still be valid when it does: an extension
never resurrects. The new validity counts from before the first send.

A node that has restarted with its data extends a lock that it still has, before it
votes again. RESTORE needs a vote.

RESTORE is not sent once the release has begun: the transport asks for that when it
takes the request from its queue. A release that begins later follows it on each
connection. A node on which another client holds the key is left alone. RESTORE also
brings the lock to nodes that were away at acquire.

A client whose view lags repeats the renewal with the view that the nodes have told: in
between nothing is wrong with them. Its validity counts from before the first try.

A lock that an operator released stays released, also where no client has it yet: the
lease ends at once. A release that reached a minority only is no loss: the lock is
restored there.

A renewal does not wait for all nodes. A node that says too late that it is without the
key gets its RESTORE with the next renewal.

Several leases are renewed by one EXTEND, if at their last renewals no node told of
anything else: a node renews all of them, or none. If a majority does not, or some node
tells of another holder, a missing lock, a newcomer or a key that it refuses, each is
then renewed by itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from celery_redlock.locks.forced_release import records_in
from celery_redlock.locks.lease import end_of_validity
from celery_redlock.locks.permits import lock_name
from celery_redlock.scripts import EXTEND, GRANTED, RESTORE
from celery_redlock.scripts.keys import Keys, stripes_of
from celery_redlock.wire.quorum import VoteKind
from celery_redlock.wire.requests import grant_is_decided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.locks.lease import Lease
    from celery_redlock.members.restart_guard import RestartGuard
    from celery_redlock.wire.quorum import Ballot
    from celery_redlock.wire.requests import Nodes, ScriptRequest


_MS = 1000
# What a node answers for one key of a request. Its other errors are about all keys.
_ERROR_OF_A_KEY = re.compile("answered (WRONGTYPE|NOPERM .*key)")


class Extension:
    """A renewal under way. The caller sends its requests and calls ``advance``.

    Args:
        leases: The lease to renew, or several.
        nodes: The nodes of the deployment.
        keys: The names of the keys on the nodes.
        guard: Knows the view that the nodes must have.

    Attributes:
        leases: The leases that are renewed.
        request: The request that was sent last, and is waited for.
        started_at: Instant before the first send.
        result: None while under way. True when the validity has moved, of each of the
            leases that was still valid; False when this try has failed, which ends
            nothing by itself.
        cancelled_by: The newcomer that asked the holder to end, as some node said.
    """

    __slots__ = (
        "_before",
        "_config",
        "_extended",
        "_guard",
        "_keys",
        "_lease",
        "_nodes",
        "_was_repeated",
        "cancelled_by",
        "leases",
        "request",
        "result",
        "started_at",
    )

    def __init__(
        self,
        leases: Sequence[Lease],
        nodes: Nodes,
        keys: Keys,
        guard: RestartGuard,
    ) -> None:
        self.leases = leases
        self._lease = leases[0]
        self.started_at = nodes.clock.monotonic()
        self.result: bool | None = None
        self.cancelled_by = ""
        self._was_repeated = False
        self._nodes = nodes
        self._guard, self._keys = guard, keys
        self._before = leases[0].renewal_ballot
        self.request = self._extend()

    def carry_through(self) -> bool:
        """Send, wait and restore until there is a result, and return it."""
        request: ScriptRequest | None = self.request
        while request is not None:
            self._nodes.transport.ask(request)
            # Done, late, or out of reach: there is nothing more to wait for.
            request = self.advance(out_of_time=True)
        return self.result is True

    def advance(self, *, out_of_time: bool) -> ScriptRequest | None:
        """Judge the votes so far. Return a request to be sent now, if there is one.

        Args:
            out_of_time: Whether to judge now though votes are outstanding. Otherwise
                nothing happens before the request is done.
        """
        if self.result is not None or not (self.request.is_done() or out_of_time):
            return None
        ballot = self.request.ballot
        restoring = self._extended is not None
        if not restoring:
            self.cancelled_by = _cancelled_by(self.request.replies)
            if self.leases[1:]:
                self._conclude_together(ballot)
                return None
            self._lease.renewal_ballot = ballot
        granted = set(ballot.indexes(VoteKind.GRANTED))
        if self._extended is not None:
            granted |= set(self._extended.indexes(VoteKind.GRANTED))
        if len(granted) >= ballot.quorum:
            self._renew(len(granted))
        elif not restoring and (release := self._forced_release(ballot)):
            self._lease.released_by = release
            self._lease.until = min(self._lease.until, self._nodes.clock.monotonic())
        is_missing = not restoring and (_is_free(ballot) or _is_free(self._before))
        if is_missing and self._lease.is_valid():
            return self._restore(ballot)
        if self.result is None:
            is_told = self._guard.adopt(ballot) and not self._was_repeated
            if is_told and self._lease.is_valid():
                self._was_repeated = True
                self.request = self._extend()
                return self.request
            self.result = False
        return None

    def _conclude_together(self, ballot: Ballot) -> None:
        """Renew the leases, if a majority has, and no node tells of anything else."""
        self.result = False
        is_decided = ballot.granted >= ballot.quorum
        if is_decided and _is_unanimous(ballot) and not self.cancelled_by:
            self._renew(ballot.granted)
            for lease in self.leases:
                lease.renewal_ballot = ballot

    def _renew(self, votes: int) -> None:
        self.result = False
        for lease in self.leases:
            if lease.is_valid():
                self.result = True
                until = end_of_validity(self.started_at, lease.ttl)
                lease.until = max(lease.until, until)
                lease.votes = votes

    def _forced_release(self, ballot: Ballot) -> str:
        """Return who released the lock by force, if no majority can have it; or ""."""
        missing = len(ballot.indexes(VoteKind.FREE)) + ballot.taken
        if missing <= len(ballot.labels) - ballot.quorum:
            return ""
        found = records_in(self.request.replies)
        return str(found[0]) if found else ""

    def _extend(self) -> ScriptRequest:
        self._config = self._guard.config
        self._extended: Ballot | None = None
        names: list[str] = []
        args: list[str | int] = [self._config]
        for lease in self.leases:
            locks = _locks_of(lease, self._keys)
            names += locks
            args += [lease.token, round(lease.ttl * _MS)] * len(locks)
        return self._nodes.request(
            EXTEND,
            (*names, self._keys.meta, self._keys.releases),
            args,
            done_when=grant_is_decided,
            is_obsolete=self._is_over,
        )

    def _restore(self, extended: Ballot) -> ScriptRequest:
        def decided(ballot: Ballot) -> bool:
            yes = set(ballot.indexes(VoteKind.GRANTED))
            yes |= set(extended.indexes(VoteKind.GRANTED))
            return len(yes) >= ballot.quorum or not ballot.pending

        lease = self._lease
        stripes = stripes_of(lease.key)
        locks = _locks_of(lease, self._keys)
        stripes += stripes[:1] * (len(locks) - len(stripes))  # of the call
        self._extended = extended
        self.request = self._nodes.request(
            RESTORE,
            (*locks, self._keys.meta),
            [
                self._config,
                lease.token,
                lease.holder_info,
                round(lease.ttl * _MS),
                lease.fence,
                *stripes,
            ],
            done_when=decided,
            is_obsolete=self._is_over,
        )
        return self.request

    def _is_over(self) -> bool:
        return not all(lease.is_valid() for lease in self.leases)


def is_usual(lease: Lease) -> bool:
    """Tell whether the lease can be renewed together with others.

    It has one lock, no newcomer asked its holder to end, and the nodes had nothing else
    to tell of its lock at the last renewal.
    """
    has_more = "\n" in lease.key or (lease.choice and lease.choice.call)
    if has_more or lease.cancelled_by:
        return False
    ballot = lease.renewal_ballot
    return ballot is None or _is_unanimous(ballot)


def _is_unanimous(ballot: Ballot) -> bool:
    """Tell whether each node that told of a lock has renewed it.

    A node that refuses one key of a request carries out nothing of it.
    """
    if ballot.granted + ballot.pending == len(ballot.votes):
        return True
    return ballot.answered == ballot.granted and not any(
        vote is not None and _ERROR_OF_A_KEY.match(vote.reason) for vote in ballot.votes
    )


def _locks_of(lease: Lease, keys: Keys) -> list[str]:
    """Return the names of the locks of a lease; of a call, after those of its keys."""
    locks = keys.locks(lease.key)
    if lease.choice is not None:
        for limit, name in lease.choice.call:
            locks.append(lock_name(limit, name, keys))
    return locks


def _is_free(ballot: Ballot | None) -> bool:
    """Tell whether some node said that it is without the key."""
    return ballot is not None and ballot.answered > ballot.granted + ballot.taken


def _cancelled_by(replies: Sequence[Any]) -> str:
    """Return the newcomer that some node names beside its grant."""
    named = [r[2] for r in replies if isinstance(r, list) and r[0] == GRANTED and r[2:]]
    return str(named[0].decode(errors="replace")) if named else ""
