"""A key function that asks for the headers of the message: a tenant, for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from celery import Task, states
from celery.exceptions import WorkerLostError
from celery.signals import before_task_publish

from celery_redlock import ConfigurationError
from tests.unit.tasks.support import Worker
from tests.unit.tasks.test_request import child, failure, kill, receive

__all__ = ["child"]  # pytest finds it here


class OfTenant(Task):
    """Sends the tenant in a header, as base classes of multi-tenant projects do."""

    abstract = True
    tenant = "a"

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish with the header."""
        headers = {**(options.pop("headers", None) or {}), "schema": self.tenant}
        return super().apply_async(args, kwargs, headers=headers, **options)


def by_tenant(n: int, headers: Mapping[str, Any]) -> str:
    """Return the key of a number for its tenant."""
    return f"{headers.get('schema', 'public')}:{n}"


def test_calls_of_two_tenants_are_two_calls(worker: Worker) -> None:
    """Each is claimed, and locked, under a key with its tenant."""

    @worker.task(key=by_tenant, unique_while="queued", base=OfTenant)
    def job(n: int) -> int:
        return n

    first, again = job.delay(1), job.delay(1)
    job.tenant = "b"
    second = job.delay(1)

    assert again.id == first.id != second.id
    assert list(worker.claims("a:1")) == [first.id]
    assert list(worker.claims("b:1")) == [second.id]
    with worker.held(key="a:1"):
        run = worker.run(job, 1, id=second.id, schema="b")
    assert run.stored == states.SUCCESS
    assert worker.claims("b:1") == {}
    assert job.lock_key(1) == "public:1"


def test_calls_of_two_tenants_that_a_receiver_tells_apart_are_two(
    worker: Worker,
) -> None:
    """A call without its tenant is no claim that keeps those of others out."""
    tenants = iter("ab")

    def name_tenant(headers: dict[str, Any], **_: Any) -> None:
        headers["schema"] = next(tenants)

    @worker.task(key=by_tenant, unique_while="queued")
    def job(n: int) -> int:
        return n

    before_task_publish.connect(name_tenant)
    try:
        first, second = job.delay(1), job.delay(1)
    finally:
        before_task_publish.disconnect(name_tenant)

    assert worker.messages() == [first.id, second.id]
    assert [worker.claims(f"{one}:1") for one in ("public", "a", "b")] == [{}] * 3


def test_republished_call_keeps_its_headers(worker: Worker) -> None:
    """The next copy has the same tenant, and so the same key."""

    @worker.task(key=by_tenant, on_conflict="retry", base=OfTenant)
    def job(n: int) -> int:
        return n

    with worker.held(key="b:1"):
        assert worker.run(job, 1, schema="b").stored == states.RETRY

    ((headers, _),) = worker.published
    assert headers["schema"] == "b"


def test_main_process_reads_the_headers_as_well(worker: Worker, child: Any) -> None:
    """It releases the lock of a killed process under the key of the tenant.

    The header of this package is not one of them, there and in the process.
    """

    def key(headers: Mapping[str, Any]) -> str:
        return str(sorted(headers))

    worker.leased_job(key=key)
    request = receive(worker)
    assert request._wanted()[0] == "[]"  # noqa: SLF001
    request.worker_pid = child.pid
    base = request.request_dict["redlock"]["base"]
    worker.rival.acquire(request._wanted()[0], base=base)  # noqa: SLF001
    kill(child)

    request.on_failure(failure(WorkerLostError("gone")))

    assert worker.rival.inspect(request._wanted()[0]).holder is None  # noqa: SLF001


def test_argument_with_the_name_headers_is_the_argument(worker: Worker) -> None:
    """The task's own argument comes first."""

    @worker.task(key=lambda headers: f"h:{headers}")
    def job(headers: str) -> str:
        return headers

    assert job.lock_key("x") == "h:x"
    with pytest.raises(ConfigurationError, match="names the argument 'other'"):
        worker.task(key=lambda other: f"{other}")(by_tenant)
