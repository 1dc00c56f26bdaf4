"""What a diagnosis finds in the use of real servers by an app."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_redlock import singleton_task
from celery_redlock.diagnostics import Severity, diagnose
from tests.nodes.support import client

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes
    from celery_redlock.diagnostics import Finding

Hold = Any


def found(
    nodes: DevNodes, code: str, settings: dict[str, Any] | None = None, **options: Any
) -> list[Finding]:
    """Return what of this kind is found with an app of one lock task."""
    app = Celery("proj", set_as_current=False)
    app.conf.update(
        {
            "broker_url": "memory://",
            "result_backend": "cache+memory://",
            **(settings or {}),
        }
    )

    @singleton_task(app=app, name="proj.send_invoice", shared=False, **options)
    def send_invoice() -> None: ...

    with client(nodes) as redlock:
        findings = diagnose(redlock, app, span=0.05)
    return [finding for finding in findings if finding.code == code]


def test_node_that_is_the_broker_is_found(
    three_nodes: DevNodes, start_nodes: Callable[..., DevNodes]
) -> None:
    """By what server it is: another name or another database do not hide it."""
    apart = start_nodes(1, initialize=False).urls[0]
    port = three_nodes.nodes[1].port
    here = f"redis://localhost:{port}//"

    shared = found(three_nodes, "shared", {"broker_url": f"{apart};{here}"})
    as_backend = found(three_nodes, "shared", {"result_backend": here})
    separate = found(
        three_nodes, "shared", {"broker_url": apart, "result_backend": apart}
    )

    (finding,) = shared
    assert (finding.severity, finding.about) == (
        Severity.WARNING,
        f"127.0.0.1:{port}/0",
    )
    assert "is Celery's broker as well" in finding.fact
    assert "result backend" in as_backend[0].fact
    assert separate == []


def test_broker_that_cannot_be_reached_is_passed_over(three_nodes: DevNodes) -> None:
    """The nodes are what is examined; a broker that is down is found by others."""
    assert found(three_nodes, "shared", {"broker_url": "redis://127.0.0.1:1"}) == []


def test_password_of_the_broker_is_not_shown(three_nodes: DevNodes) -> None:
    """Its URL is in the finding, and its secrets are not."""
    url = three_nodes.urls[0].replace("://", "://:hush@")
    three_nodes.nodes[0].command("CONFIG", "SET", "requirepass", "hush")

    with client([url, *three_nodes.urls[1:]], restart_guard=False) as redlock:
        app = Celery("proj", broker=url, set_as_current=False)
        findings = diagnose(redlock, app, span=0.05)

    (finding,) = [finding for finding in findings if finding.code == "shared"]
    assert "***@127.0.0.1" in finding.fact
    assert "hush" not in str(findings)


def test_task_that_outlives_its_unrenewed_lock_is_found(
    three_nodes: DevNodes, hold: Hold
) -> None:
    """Its lock is seen on the nodes, with the instant at which it was taken."""
    hold(three_nodes, "young", started=time.time() - 5)
    quick = found(three_nodes, "runtime", renew=False)
    hold(three_nodes, "old", started=time.time() - 20)
    slow = found(three_nodes, "runtime", renew=False)
    renewed = found(three_nodes, "runtime")

    assert (quick, renewed) == ([], [])
    (finding,) = slow
    assert (finding.severity, finding.about) == (Severity.WARNING, "proj.send_invoice")
    assert "running for 20 s, and its lock of 30 s is not renewed" in finding.fact


def test_task_that_runs_past_the_visibility_timeout_is_found(
    three_nodes: DevNodes, hold: Hold
) -> None:
    """The broker delivers its message again while it runs."""
    redis_broker = {"broker_url": "redis://127.0.0.1:1"}
    hold(three_nodes, "k", started=time.time() - 4000)

    (finding,) = found(three_nodes, "runtime", redis_broker, acks_late=True)

    assert "after 3600 s (visibility_timeout)" in finding.fact
    assert found(three_nodes, "runtime", redis_broker) == []
