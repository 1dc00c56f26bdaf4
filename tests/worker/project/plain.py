"""Tasks without a lock: what the locked ones are compared with."""

from __future__ import annotations

from celery import shared_task

from tests.worker.project.body import hold, recorded


@shared_task(name="plain")
def plain(key: str) -> str:
    """Run until the gate opens, beside whoever else does."""
    return hold(key)


@shared_task(name="tail")
def tail(results: object, key: str) -> object:
    """Return what came before: the end of a chain, the body of a chord."""
    with recorded(f"{key}-tail"):
        return results
