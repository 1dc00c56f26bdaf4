"""The doctor: its findings, their log lines, and those about tasks and settings."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from celery_redlock import Redlock, singleton_task
from celery_redlock.operations.doctor import (
    Case,
    Finding,
    Severity,
    findings_of,
    log_diagnosis,
    log_findings,
    settings,
    worst_of,
)
from celery_redlock.policies import Raise, Skip
from tests.harness.source import finding_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


EVEN = Finding("even-nodes", Severity.NOTE, "There are 4.", "Use 5.")
SLOW = Finding("slow", Severity.WARNING, "It is slow.", "Move it.", "redis-a")
REPLICA = Finding("replica", Severity.ERROR, "It is one.", "Use a master.", "redis-b")


def test_worst_of_findings() -> None:
    """It is the greatest severity, and None without findings."""
    assert worst_of([EVEN, REPLICA, SLOW]) is Severity.ERROR
    assert worst_of([]) is None


def test_findings_go_to_the_log_by_severity(caplog: pytest.LogCaptureFixture) -> None:
    """A note is an INFO line. Each line ends with the code, and has it as a field."""
    caplog.set_level(logging.INFO)

    log_findings([REPLICA, SLOW, EVEN])

    levels = [record.levelname for record in caplog.records]
    assert levels == ["ERROR", "WARNING", "INFO"]
    first = caplog.records[0]
    assert first.getMessage() == "It is one. Use a master. [replica]"
    assert vars(first)["redlock_code"] == "replica"
    assert vars(first)["redlock_about"] == "redis-b"


def test_worst_findings_come_first() -> None:
    """Without any report of a node, the lack of a quorum comes first."""
    redlock = Redlock(["redis://127.0.0.1:1", "redis://127.0.0.1:2"])

    found = findings_of(Case(redlock, []))

    severities = [finding.severity for finding in found]
    assert severities == sorted(severities, reverse=True)
    assert found[0].code == "no-quorum"


def test_diagnosis_in_the_background_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It logs the findings, without those that the start of a worker logs itself."""
    redlock = Redlock(["redis://127.0.0.1:1"])

    thread = log_diagnosis(redlock)
    thread.join(30)

    logged = [vars(record).get("redlock_code") for record in caplog.records]
    assert logged == ["few-nodes"]


def test_findings_as_json_are_words() -> None:
    """In JSON, the severity is a word."""
    assert SLOW.as_dict() == {
        "code": "slow",
        "severity": "warning",
        "about": "redis-a",
        "fact": "It is slow.",
        "remedy": "Move it.",
    }


def test_every_code_is_documented() -> None:
    """The table of the page has all codes, and no others."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "findings.md"
    table = page.read_text(encoding="utf-8").split("| code |")[1].split("\n\n")[0]

    documented = set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE))

    assert documented == finding_codes()


# -- tasks and settings ------------------------------------------------------------


NODES = ["redis://a", "redis://b", "redis://c"]
WARNING, ERROR, NOTE = Severity.WARNING, Severity.ERROR, Severity.NOTE


def found(
    rule: Callable[[Case], Iterator[Finding]],
    *,
    settings: dict[str, Any] | None = None,
    timing: dict[str, Any] | None = None,
    **options: Any,
) -> list[Finding]:
    """Return the findings of a rule for an app with one lock task."""
    app = Celery(
        "shop", broker="redis://broker", backend="redis://results", set_as_current=False
    )
    app.conf.update(settings or {})

    @singleton_task(app=app, name="bill", shared=False, **options)
    def bill() -> None: ...

    @app.task(
        name="plain",
        shared=False,
        acks_late=True,
        ignore_result=True,
        time_limit=99_999,
    )
    def plain() -> None: ...

    redlock = Redlock(NODES, **(timing or {}))
    return list(rule(Case(redlock, [], app)))


def only(findings: list[Finding]) -> Finding:
    """Return the only finding. It is about the lock task, and has a remedy."""
    (finding,) = findings
    assert finding.about == "bill"
    assert finding.fact.startswith("Task bill ")
    assert finding.remedy.endswith(".")
    return finding


@pytest.mark.parametrize(
    "rule",
    [
        settings.timing,
        settings.time_limits,
        settings.visibility,
        settings.runtimes,
        settings.acks_late,
        settings.result_backend,
    ],
)
def test_sound_app_has_no_findings(rule: Callable[[Case], Iterator[Finding]]) -> None:
    """A task with defaults, and one with late acknowledgement, have no findings."""
    sound: dict[str, Any] = {
        "acks_late": True,
        "reject_on_worker_lost": True,
        "time_limit": 600,
    }

    assert found(rule, **sound) == []
    assert found(rule) == []


def test_ttl_too_short_for_the_node_timeout() -> None:
    """A node must have time to answer between two tries of a renewal."""
    short = {"ttl": 1.0, "node_timeout": 0.05}

    (finding,) = found(settings.timing, timing=short)

    assert (finding.code, finding.severity) == ("ttl", WARNING)
    assert "0.083 s; a node may take 0.05 s" in finding.fact
    assert "at least 1.2 s" in finding.remedy
    assert found(settings.timing, timing={"ttl": 1.2, "node_timeout": 0.05}) == []


def test_unrenewed_lock_shorter_than_the_time_limit() -> None:
    """The lock may expire while the task runs. The app's time limit counts, too."""
    finding = only(found(settings.time_limits, renew=False, ttl=20, time_limit=21))

    assert (finding.code, finding.severity) == ("ttl", ERROR)
    assert "its lock of 20 s, and may run for 21 s" in finding.fact
    assert found(settings.time_limits, renew=False, ttl=20, time_limit=20) == []
    endless = only(found(settings.time_limits, renew=False))
    assert endless.severity is WARNING
    assert "its lock of 30 s, and may run for ever" in endless.fact
    limit = {"task_time_limit": 25}
    assert found(settings.time_limits, renew=False, settings=limit) == []


def test_time_limit_above_the_visibility_timeout() -> None:
    """The broker redelivers the message too early. RabbitMQ has no such timeout."""
    late: dict[str, Any] = {"acks_late": True, "time_limit": 7200}

    finding = only(found(settings.visibility, **late))

    assert (finding.code, finding.severity) == ("visibility-timeout", WARNING)
    assert "may run for 7200 s (its time_limit): after 3600 s" in finding.fact
    assert found(settings.visibility, time_limit=7200) == []
    longer = {"broker_transport_options": {"visibility_timeout": 7200}}
    rabbit = {"broker_url": "amqp://rabbit"}
    assert found(settings.visibility, settings=longer, **late) == []
    assert found(settings.visibility, settings=rabbit, **late) == []


def test_message_that_waits_above_the_visibility_timeout() -> None:
    """A countdown may be too long; so may be the lock of a worker that has died."""
    minute = {"broker_transport_options": {"visibility_timeout": 60}}
    retried: dict[str, Any] = {"on_conflict": "retry", "retry_countdown": 90}
    short = {"broker_transport_options": {"visibility_timeout": 20}}

    countdown = only(found(settings.visibility, settings=minute, **retried))
    locked = only(found(settings.visibility, settings=short, acks_late=True))

    assert "waits for 90 s to be retried: after 60 s" in countdown.fact
    assert "is locked for 30 s (its ttl): after 20 s" in locked.fact


def test_acks_late_without_reject_on_worker_lost() -> None:
    """Each of the two settings counts, for the task or for all tasks."""
    finding = only(found(settings.acks_late, acks_late=True))

    assert (finding.code, finding.severity) == ("acks-late", WARNING)
    everywhere = only(found(settings.acks_late, settings={"task_acks_late": True}))
    assert everywhere.code == "acks-late"
    both = {"task_acks_late": True, "task_reject_on_worker_lost": True}
    assert found(settings.acks_late, settings=both) == []


@pytest.mark.parametrize(
    "conf", [{"result_backend": None}, {}], ids=["none", "ignored"]
)
def test_results_that_are_not_kept(conf: dict[str, Any]) -> None:
    """A copy needs the result to see that its job finished; so does a publisher."""
    ignored: dict[str, Any] = {} if conf else {"ignore_result": True}

    late = only(
        found(settings.result_backend, settings=conf, acks_late=True, **ignored)
    )
    early = only(found(settings.result_backend, settings=conf, **ignored))

    assert (late.code, late.severity) == ("result-backend", WARNING)
    assert (early.code, early.severity) == ("result-backend", NOTE)
    why = "there is no result_backend" if conf else "it has ignore_result"
    assert why in late.fact
    assert why in early.fact


@pytest.mark.parametrize(
    ("on_conflict", "severity"),
    [
        ("skip", WARNING),
        ("wait", WARNING),  # which only a worker can do
        ({"execute": "raise"}, WARNING),
        ({"publish": "raise"}, NOTE),
        ({"publish": "raise", "execute": "raise"}, None),
        ("raise", None),
        (Raise(), None),
        (Skip(), WARNING),
        (lambda _: "raise", None),
    ],
)
def test_result_that_a_publisher_gets_and_is_not_kept(
    on_conflict: Any, severity: Severity | None
) -> None:
    """The publisher of a duplicate gets the first call's result, which never comes."""
    found_here = found(
        settings.result_backend,
        ignore_result=True,
        unique_while="queued_or_running",
        on_conflict=on_conflict,
    )

    assert [finding.severity for finding in found_here] == (
        [severity] if severity else []
    )
    if severity is WARNING:
        assert "that result never comes" in only(found_here).fact


def test_without_an_app_there_are_no_findings_about_tasks() -> None:
    """The lock can be used, and diagnosed, without Celery."""
    case = Case(Redlock(NODES), [])

    assert list(settings.visibility(case)) == []
    assert list(settings.result_backend(case)) == []
