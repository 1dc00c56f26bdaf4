"""Be the one run that follows, or make way for it: ``buffer_one``, ``cancel_running``.

``buffer_one``: however many calls are refused while one runs, one more run follows.
``cancel_running``: only the newest call counts. It has the one that runs told to end,
and runs when that has ended; older ones that wait or come late end as superseded.

Which of those that wait is to run is settled by ``buffering``. All of them but one
end; that one is never anywhere but in its queue, or here.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from celery_redlock import outcome
from celery_redlock.buffering import Answer, give_up_turn
from celery_redlock.call import doubled
from celery_redlock.cancelling import ask_to_end
from celery_redlock.errors import DuplicateTask
from celery_redlock.notices import duplicate

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.exceptions import Ignore

    from celery_redlock.call import Call
    from celery_redlock.core.lease import Holder
    from celery_redlock.errors import LockHeld
    from celery_redlock.interrupt import Interrupter

__all__ = ["Following"]

log = logging.getLogger("celery_redlock.following")

_MOST_GHOSTS = 5  # in a row that have ended before their turn
_OTHERS_ARE_AWAY = 300.0  # seconds in which those that it stands for come back


class Following:
    """The part that one copy of a call plays among those that wait.

    Args:
        call: The call.
        interrupter: Lets time limits in while it pauses.
    """

    def __init__(self, call: Call, interrupter: Interrupter) -> None:
        self._call = call
        self._interrupter = interrupter
        self._keep = call.envelope.next
        self._is_entered = bool(self._keep)  # by a majority of the nodes
        self._policy = "buffer_one"
        if call.options.only_newest:  # also one that finds the lock free
            self._keep, self._policy = "latest", "cancel_running"
        self._was_patient = False

    def follow(self, held: LockHeld, keep: str, countdown: float = 0.0) -> float:
        """Go back into the queue as the next to run, or end if another one is that.

        Args:
            held: Who holds the lock.
            keep: Whether the ``"latest"`` of those that wait runs, or the ``"first"``.
            countdown: Seconds until it tries again; 0: longer each time, up to half
                a ttl.

        Returns:
            For how many seconds to try for the lock: it has not ended, for the
            broker is away.

        Raises:
            celery.exceptions.Ignore, celery.exceptions.Retry: This copy has ended.
            DuplicateTask: There is no queue: it runs eagerly.
        """
        call, deferred = self._call, self._call.envelope.deferred
        if call.request.is_eager:
            raise duplicate(call, held, self._policy, "did not run: it has no queue")
        delay = countdown or doubled(deferred, call.options.ttl / 2)
        self._line_up(held, keep, delay)
        call.put_back(
            duplicate(call, held, self._policy, "waits in its queue"),
            delay,
            self._interrupter,
            deferred=deferred + 1,
            next=keep if self._is_entered else "",
        )
        return 0.0

    def replace(self, held: LockHeld, grace: float) -> float:
        """Have the one that runs told to end, unless it is the newer of the two.

        Args:
            held: Who holds the lock.
            grace: Seconds for which to wait for it before going back into the queue.

        Returns:
            For how many seconds to try for the lock.

        Raises:
            celery.exceptions.Ignore, celery.exceptions.Retry: This copy has ended.
            DuplicateTask: There is no queue: it runs eagerly.
        """
        call, holder = self._call, held.holder
        self._policy = "cancel_running"
        if holder is not None and self._is_newer(holder):
            raise self._superseded(holder.task_id, held)
        patience = 0.0 if self._was_patient or call.envelope.deferred else grace
        self._was_patient = True
        if patience and not call.request.is_eager:
            self._line_up(held, "latest", patience)
        if holder is not None:
            ask_to_end(call.runtime.redlock, call.key, holder, str(call))
        return patience or self.follow(held, "latest")

    def take_turn(self) -> None:
        """Wait no more, now that the lock is held.

        Raises:
            celery.exceptions.Ignore: Another one that waits runs in its stead.
        """
        keep, self._keep = self._keep, ""
        if not keep:
            return
        ttl = self._call.options.ttl + _OTHERS_ARE_AWAY
        take = self._call.turn(keep).take
        answer = self._settled(lambda: take(ttl=ttl, entered=self._is_entered))
        if answer.by is not None:
            raise self._superseded(answer.by)

    def leave(self) -> None:
        """Be none of those that wait, since the call ends in another way."""
        call, keep, self._keep = self._call, self._keep, ""
        if keep:
            give_up_turn(call.runtime.redlock, call.key, call.task.name, call.id)

    def _line_up(self, held: LockHeld, keep: str, seconds: float) -> None:
        """Be the next to run, for so long and a ttl, or end."""
        call, holder = self._call, held.holder
        offer = functools.partial(
            call.turn(keep).offer,
            ttl=seconds + call.options.ttl,
            entered=self._is_entered,
            holder_id=holder.task_id if holder is not None else "",
        )
        answer = self._settled(offer)
        self._keep, self._is_entered = keep, answer.entered
        if answer.by is not None:
            self._keep = ""
            raise self._superseded(answer.by, held)

    def _settled(self, ask: Callable[[], Answer]) -> Answer:
        """Return the answer, once it names nobody that will never run."""
        call = self._call
        for _ in range(_MOST_GHOSTS):
            answer = ask()
            if answer.by is None or not answer.waits:
                return answer
            if not outcome.has_ended(call.task, call.request, answer.by):
                return answer
            log.info("%s has ended before its turn; %s asks again.", answer.by, call)
            give_up_turn(call.runtime.redlock, call.key, call.task.name, answer.by)
        return Answer(by=None, entered=False)

    def _is_newer(self, holder: Holder) -> bool:
        """Tell whether the one that runs was published after this one."""
        call = self._call
        ours = call.envelope.published, call.id
        return holder.task == call.task.name and (
            (holder.published, holder.task_id) > ours
        )

    def _superseded(self, by: str, held: LockHeld | None = None) -> Ignore:
        call, policy = self._call, self._policy
        self.leave()
        error = DuplicateTask(
            f"{call} did not run (on_conflict: {policy}): {by} runs in its stead, as "
            f"the one call that does of those for the lock {call.key!r}.",
            key=call.key,
            holder=held.holder if held is not None else None,
        )
        log.info("%s", error, extra=call.about("superseded", by=by))
        return outcome.skip(
            call.task,
            call.request,
            error,
            key=call.key,
            policy=policy,
            holder=str(held.holder) if held is not None else by,
            superseded_by=by,
        )
