"""The part of a call in the successor register: for ``buffer_one``, ``cancel_running``.

Many calls may be refused while one runs. The register on the nodes names the one of
them that runs next; see ``line.successors``. All others end as *superseded*:
REVOKED, with the id of the call that runs instead. The named call is always in its
queue or in here, so it is never lost.

::

    refused ──► enter ──┬─► named: wait in the queue, or in the worker process
                        └─► another call is named: end as superseded
    granted ──► start ──┬─► named, or no call waits: run
                        └─► another call is named: end as superseded
    superseded, skipped, failed, run without the lock ──► withdraw
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from celery_redlock.basics.backoff import doubled, jittered
from celery_redlock.errors import DuplicateTask, LockHeld
from celery_redlock.line.cancel_requests import ask_to_end
from celery_redlock.line.successors import RegisterReply, withdraw
from celery_redlock.task.ends import skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.exceptions import Ignore

    from celery_redlock.policies import RefusedCall
    from celery_redlock.task.call import Call

__all__ = ["Successor"]

log = logging.getLogger(__name__)

_MOST_ENDED = 5  # named calls in a row that have ended before they ran
_RETURN_WITHIN = 300.0  # seconds in which superseded calls return to a worker


class Successor:
    """The part of one execution of a call in the successor register."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._keep = call.header.next or call.options.task.keeps
        self._is_entered = bool(call.header.next)  # by a majority of the nodes
        self._policy = "cancel_running" if call.options.task.replaces else "buffer_one"

    # -- for the policies ----------------------------------------------------

    def wait_in_queue(
        self, refused: RefusedCall, keep: str, countdown: float = 0.0
    ) -> float:
        """Enter the register and republish the call, or end as superseded.

        Args:
            refused: The refused call: a `policies.RefusedCall`.
            keep: Which of the waiting calls runs: the ``"latest"`` or the ``"first"``.
            countdown: Seconds until the call tries again; 0: longer each time, up to
                half a ttl.

        Returns:
            Seconds for which to try for the lock: the broker did not take the call.

        Raises:
            celery.exceptions.Ignore, celery.exceptions.Retry: This copy has ended.
            DuplicateTask: The call runs eagerly: it has no queue.
        """
        call = self._call
        if call.request.is_eager:
            raise refused.duplicate("did not run: it has no queue")
        longest = call.options.ttl / 2
        delay = countdown or jittered(doubled(1.0, call.header.deferred, longest))
        self._enter(refused.held, keep, delay)
        next_ = keep if self._is_entered else ""
        return refused.republish(delay, "waits in its queue", next_=next_)

    def replace_holder(self, refused: RefusedCall, grace: float) -> float:
        """Ask the running call to end, unless it is the newer of the two.

        The call then waits in the worker process for ``grace`` seconds, or, if that is
        0, in its queue. Returns and raises what ``wait_in_queue`` does.
        """
        call, held, holder = self._call, refused.held, refused.held.holder
        self._policy = "cancel_running"
        if call.request.is_eager and not grace:
            raise refused.duplicate("did not run: it has no queue")
        delay = grace or jittered(
            doubled(1.0, call.header.deferred, call.options.ttl / 2)
        )
        if not call.request.is_eager:
            self._enter(held, "latest", delay)
        if holder is not None:
            ask_to_end(call.runtime.redlock, call.key, holder, str(call))
        if grace:
            return refused.wait(grace)
        next_ = "latest" if self._is_entered else ""
        return refused.republish(delay, "waits in its queue", next_=next_)

    # -- under the lock -------------------------------------------------------

    def start(self) -> None:
        """Note that the call runs, now that it has its lock; or end as superseded."""
        keep, self._keep = self._keep, ""
        if not keep:
            return
        ttl = self._call.options.ttl + _RETURN_WITHIN
        start = self._call.register(keep).start
        reply = self._asked(lambda: start(ttl=ttl, entered=self._is_entered))
        if reply.by is not None:
            raise self._superseded(reply.by)

    def withdraw(self) -> None:
        """Leave the register, because the call ends, or runs, in another way."""
        call, self._keep = self._call, ""
        if call.id and not call.request.is_eager:
            withdraw(call.runtime.redlock, call.key, call.task.name, call.id)

    # -- the register --------------------------------------------------------

    def _enter(self, held: LockHeld, keep: str, seconds: float) -> None:
        """Enter the register for some seconds and a ttl, or end as superseded."""
        call, holder = self._call, held.holder
        enter = functools.partial(
            call.register(keep).enter,
            ttl=seconds + call.options.ttl,
            entered=self._is_entered or self._policy == "cancel_running",
            holder_id=holder.task_id if holder is not None else "",
        )
        reply = self._asked(enter)
        self._keep, self._is_entered = keep, reply.entered
        if reply.by is not None:
            self._keep = ""
            raise self._superseded(reply.by, held)

    def _asked(self, ask: Callable[[], RegisterReply]) -> RegisterReply:
        """Return the reply of the nodes; withdraw named calls that never run.

        A call notes its start before it runs. So the nodes are asked once more when
        the end is known: the first reply may be of the time before the start.
        """
        call, ended = self._call, None
        for _ in range(2 * _MOST_ENDED):
            reply = ask()
            if reply.by is None or not reply.waits:
                return reply
            if reply.by != ended:
                if not call.has_ended(reply.by):
                    return reply
                ended = reply.by
                continue
            log.info("%s has ended before it ran; %s asks again.", reply.by, call)
            withdraw(call.runtime.redlock, call.key, call.task.name, reply.by)
        return RegisterReply(by=None, entered=False)

    def _superseded(self, by: str, held: LockHeld | None = None) -> Ignore:
        call, policy = self._call, self._policy
        self.withdraw()
        error = DuplicateTask(
            f"{call} did not run (on_conflict: {policy}): {by} runs instead. Of the "
            f"calls that wait for the lock {call.key!r} only one runs.",
            key=call.key,
            holder=held.holder if held is not None else None,
        )
        log.info("%s", error, extra=call.log_fields("superseded", by=by))
        return skip(
            call,
            error,
            key=call.key,
            policy=policy,
            holder=str(held.holder) if held is not None else by,
            superseded_by=by,
        )
