"""Tasks without a lock, to compare the locked ones with."""

from __future__ import annotations

from celery import shared_task

from tests.worker.project.body import hold, recorded


@shared_task(name="plain")
def plain(key: str) -> str:
    """Run until the gate opens, without a lock."""
    return hold(key)


@shared_task(name="tail")
def tail(results: object, key: str) -> object:
    """Return the earlier results, as the end of a chain or the body of a chord."""
    with recorded(f"{key}-tail"):
        return results
