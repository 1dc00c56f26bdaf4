"""Run a Celery task once at a time, held on a majority of independent Redis nodes.

::

    from celery_redlock import singleton_task

    @singleton_task(key="invoice:{invoice_id}")
    def send_invoice(invoice_id): ...

A name is loaded when it is first used: importing this package is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_redlock.app.runtime import runtime_of
    from celery_redlock.effects.outbox import Outbox
    from celery_redlock.errors import (
        ConfigurationError,
        DuplicateTask,
        FingerprintError,
        LeaseError,
        LockCancelled,
        LockContended,
        LockHeld,
        LockLost,
        LockUnavailable,
        NotHolder,
        QuorumUnreachable,
        RedlockError,
        StaleFence,
    )
    from celery_redlock.locking import alock, current_lease, lock
    from celery_redlock.locks.lease import Holder, Lease
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.options.lock_options import LockOptions
    from celery_redlock.policies import Conflict
    from celery_redlock.task.decorator import singleton_task
    from celery_redlock.task.singleton_task import SingletonTask

__all__ = [
    "ConfigurationError",
    "Conflict",
    "DuplicateTask",
    "FingerprintError",
    "Holder",
    "Lease",
    "LeaseError",
    "LockCancelled",
    "LockContended",
    "LockHeld",
    "LockLost",
    "LockOptions",
    "LockUnavailable",
    "NotHolder",
    "Outbox",
    "QuorumUnreachable",
    "Redlock",
    "RedlockError",
    "SingletonTask",
    "StaleFence",
    "alock",
    "current_lease",
    "lock",
    "runtime_of",
    "singleton_task",
]

__version__ = "0.2.0"

_HOMES = {
    "Conflict": "policies",
    "Holder": "locks.lease",
    "Lease": "locks.lease",
    "LockOptions": "options.lock_options",
    "Outbox": "effects.outbox",
    "Redlock": "locks.redlock",
    "SingletonTask": "task.singleton_task",
    "alock": "locking",
    "current_lease": "locking",
    "lock": "locking",
    "runtime_of": "app.runtime",
    "singleton_task": "task.decorator",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return __all__
