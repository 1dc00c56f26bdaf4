"""``RefusalInfo`` reports the end of a call that did not run to Celery's tracer."""

from __future__ import annotations

from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any

from celery.app.trace import TraceInfo

from celery_redlock.task.ends import Republished, was_refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Task


def _lend_a_frame() -> Iterator[None]:
    """Lend its frame, which has no callers, to a traceback."""
    yield


# What a traceback of a refused call says in place of a file and a function. Without the
# globals of this module no line of source is found for it, and for a name like this
# Python looks for no file.
_CODE = _lend_a_frame.__code__.replace(
    co_filename="<celery-redlock>",
    co_name="refused by its policy; the body did not run",
)
_FRAME: Any = FunctionType(_CODE, {})().gi_frame
# At the first instruction: Django fails to format a traceback that is at none.
_TRACEBACK = TracebackType(None, _FRAME, 0, _FRAME.f_lineno)


class RefusalInfo(TraceInfo):  # type: ignore[misc]
    """Reports refusals briefly, and any other end as Celery does."""

    __slots__ = ()

    def __init__(self, state: str, retval: Any = None) -> None:
        super().__init__(state, retval)
        if was_refused(retval):
            retval.__traceback__ = _TRACEBACK

    def handle_ignore(self, task: Task, req: object, **named: Any) -> None:
        """Log nothing more about a refusal: the policy was logged."""
        if not was_refused(self.retval):
            super().handle_ignore(task, req, **named)

    def handle_retry(self, task: Task, req: object, **named: Any) -> Any:
        """Store no RETRY for a republished call, whose next copy may have ended.

        It was stored before the call was published again.
        """
        if isinstance(self.retval, Republished):
            named["store_errors"] = False
        return self._without_copy(super().handle_retry(task, req, **named))

    def handle_failure(self, task: Task, req: object, **named: Any) -> Any:
        """Send no copy of the traceback to the main process; its text is enough."""
        return self._without_copy(super().handle_failure(task, req, **named))

    def _without_copy(self, einfo: Any) -> Any:
        if was_refused(self.retval):
            einfo.tb = None
        return einfo
