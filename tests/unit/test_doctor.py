"""The doctor: its findings, their log lines, and those about tasks and settings."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task

from celery_redlock import Redlock, singleton_task
from celery_redlock.basics.finding_codes import FINDING_CODES
from celery_redlock.operations.doctor import (
    OFFLINE,
    Case,
    Finding,
    Severity,
    Workers,
    findings_of,
    folded,
    inquiry,
    log_diagnosis,
    log_findings,
    servers,
    settings,
    workers,
    worst_of,
)
from celery_redlock.operations.inspect import NodeReport, NodeState, NodeStatus
from celery_redlock.policies import Raise, Retry, Skip
from tests.harness.source import finding_codes

EVEN = Finding("even-nodes", Severity.NOTE, "There are 4.", "Use 5.")
SLOW = Finding("slow", Severity.WARNING, "It is slow.", "Move it.", "redis-a")
REPLICA = Finding("replica", Severity.ERROR, "It is one.", "Use a master.", "redis-b")


def test_worst_of_findings() -> None:
    """It is the greatest severity, and None without findings."""
    assert worst_of([EVEN, REPLICA, SLOW]) is Severity.ERROR
    assert worst_of([]) is None


def test_findings_are_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It has their number and their codes, and the level of the worst one."""
    caplog.set_level(logging.INFO)

    log_findings([REPLICA, SLOW, SLOW, EVEN])
    log_findings([SLOW])
    log_findings([EVEN])
    log_findings([])

    levels = [record.levelname for record in caplog.records]
    assert levels == ["ERROR", "WARNING", "INFO"]
    assert caplog.messages[0] == (
        "The doctor found 1 error, 2 warnings, 1 note: replica, slow (2), even-nodes. "
        "`celery -A proj redlock doctor` describes each, and its remedy."
    )
    first = vars(caplog.records[0])
    assert first["redlock_number"] == 4
    assert first["redlock_codes"] == ["replica", "slow", "even-nodes"]


def test_findings_that_say_the_same_of_several_tasks_are_one() -> None:
    """The others are named; another fact, or another remedy, stays by itself."""
    late = Finding("late", Severity.NOTE, "is late for 5 s", "Hurry.")
    longer = Finding("late", Severity.NOTE, "is late for 9 s", "Hurry.")
    found = [late.of("Task", "a.is"), longer.of("Task", "b"), EVEN]
    found += [late.of("Task", name) for name in ("c", "d")]

    assert folded(found) == [
        Finding(
            "late",
            Severity.NOTE,
            "Task a.is is late for 5 s. The same is true of c, d.",
            "Hurry.",
            "a.is",
        ),
        longer.of("Task", "b"),
        EVEN,
    ]


def test_each_finding_is_a_line_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    """The line ends with the code, and has it as a field."""
    caplog.set_level(logging.DEBUG)

    log_findings([REPLICA])

    first = caplog.records[0]
    assert first.getMessage() == "error: It is one. Use a master. [replica]"
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

    with caplog.at_level("INFO", "celery_redlock"):
        thread = log_diagnosis(redlock)
        thread.join(30)

    logged = [vars(record).get("redlock_codes") for record in caplog.records]
    assert [codes for codes in logged if codes] == [["few-nodes"]]


PAGE = (
    "https://github.com/celery-redlock/celery-redlock/blob/main/docs/reference/"
    "findings.md"
)


def test_findings_as_json_are_words() -> None:
    """In JSON, the severity is a word."""
    assert SLOW.as_dict() == {
        "code": "slow",
        "severity": "warning",
        "about": "redis-a",
        "fact": "It is slow.",
        "remedy": "Move it.",
        "address": f"{PAGE}#slow",
    }


def test_every_code_is_documented() -> None:
    """The table of the page, and the list of codes, have all and no others."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "findings.md"
    table = page.read_text(encoding="utf-8").split("| code |")[1].split("\n\n")[0]

    documented = set(re.findall(r"^\| \[`([a-z-]+)`\]\(#\1\) \|", table, re.MULTILINE))

    assert documented == finding_codes() == FINDING_CODES


def test_every_code_has_its_section() -> None:
    """At the address that the doctor prints: the cause, a check, and the remedy."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "findings.md"
    _, *sections = page.read_text(encoding="utf-8").split("\n## ")
    parts = "([a-z-]+)\n" + "".join(
        rf"\n\*\*{part}\.\*\* .+\n" for part in ("Cause", "Check", "Remedy")
    )

    found = [re.fullmatch(parts, f"{section.strip()}\n") for section in sections]

    assert {match and match[1] for match in found} == finding_codes()


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
        settings.tasks_above,
        settings.timing,
        settings.durations,
        settings.time_limits,
        settings.visibility,
        settings.runtimes,
        settings.acks_late,
        settings.result_backend,
        settings.kills,
        settings.countdowns,
        workers.processes,
        settings.rates,
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


@pytest.mark.parametrize(
    ("options", "fact", "remedy"),
    [
        ({"ttl": 90}, "the ttl of 90 s is above max_ttl (60 s)", "Lower the ttl"),
        ({"ttl": 0.1}, "the ttl of 0.1 s is not above three", "Raise it"),
        ({"hold_at_least": 61}, "hold_at_least is 61 s, above", "Lower it."),
    ],
)
def test_option_with_which_no_worker_starts(
    options: dict[str, Any], fact: str, remedy: str
) -> None:
    """A publisher does not compare the options of a task with the settings."""
    finding = only(found(settings.durations, **options))

    assert (finding.code, finding.severity) == ("option", ERROR)
    assert f"is published, but no worker starts with it: {fact}" in finding.fact
    assert finding.remedy.startswith(remedy)
    longer = {"max_ttl": 120.0, "node_timeout": 0.01}
    assert found(settings.durations, timing=longer, **options) == []


def test_lock_option_in_the_schedule_with_which_no_beat_starts() -> None:
    """A call of such an entry would be refused when it is due."""
    entry = {"task": "bill", "schedule": 60.0, "options": {"ttl": 5, "expires": 5}}
    schedule = {"nightly": entry, "other": {"task": "plain", "schedule": 60.0}}

    finding = only(found(settings.schedule, settings={"beat_schedule": schedule}))

    assert (finding.code, finding.severity) == ("option", ERROR)
    assert "in the entry 'nightly' of beat_schedule" in finding.fact
    assert finding.remedy == "Write @singleton_task(ttl=...)."
    assert settings.schedule in OFFLINE


def test_example_of_the_readme_has_no_warning() -> None:
    """A reader who copies the task of the README has nothing to correct in it."""
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    (code,) = re.findall(r"(?s)```python\n(# proj.py.*?)```", readme)
    code = code.replace('"proj", broker', '"proj", set_as_current=False, broker')
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102  (our own page)

    case = Case(Redlock(NODES), [], names["app"])

    assert [task.task.name for task in case.lock_tasks] == ["readme.send_invoice"]
    assert [f for f in findings_of(case, OFFLINE) if f.severity is not NOTE] == []


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


def test_rabbitmq_that_does_not_confirm() -> None:
    """A call is lost after ``delay`` has returned. Other brokers answer each time."""
    rabbit = {"broker_url": "amqp://rabbit"}

    (finding,) = found(settings.confirms, settings=rabbit)

    assert (finding.code, finding.severity) == ("unconfirmed", Severity.NOTE)
    assert "the publisher ends while a memory alarm blocks it" in finding.fact
    assert "confirm_publish" in finding.remedy
    sure = {**rabbit, "broker_transport_options": {"confirm_publish": True}}
    assert found(settings.confirms, settings=sure) == []
    assert found(settings.confirms, settings={"broker_url": "redis://"}) == []


@pytest.mark.parametrize(
    ("broker", "longest", "of_what"),
    [
        pytest.param(
            {"broker_transport_options": {"visibility_timeout": 60}},
            *(30, "the visibility timeout"),
            id="Redis delivers the call once more",
        ),
        pytest.param(
            {"broker_url": "amqp://rabbit"},
            *(900, "RabbitMQ's consumer_timeout"),
            id="RabbitMQ ends the worker",
        ),
    ],
)
def test_countdown_that_is_too_long_for_the_broker(
    broker: dict[str, Any], longest: int, of_what: str
) -> None:
    """The call comes back earlier than the task says."""
    retried: dict[str, Any] = {"on_conflict": "retry", "retry_countdown": longest + 1}

    finding = only(found(settings.countdowns, settings=broker, **retried))

    assert (finding.code, finding.severity) == ("countdown", Severity.NOTE)
    assert f"of {longest + 1} s, and its calls" in finding.fact
    assert f"come back after {longest} s, half of {of_what}" in finding.fact
    long, short = Retry(longest + 1), Retry(7)
    others: list[dict[str, Any]] = [
        {"on_conflict": long},
        {"on_conflict": short, "on_lock_lost": long},
        {"on_conflict": short, "on_backend_error": long},
        {**retried, "on_conflict": short, "on_lock_lost": "retry"},
    ]
    for decided in others:
        assert found(settings.countdowns, settings=broker, **decided) == [finding]
    retried["retry_countdown"] = longest
    assert found(settings.countdowns, settings=broker, **retried) == []


def test_task_above_a_lock_task() -> None:
    """Its function is that task, whose body it would call without the lock."""
    app = Celery("shop", broker="redis://broker", set_as_current=False)

    @app.task(name="above", shared=False)
    @singleton_task(app=app, name="bill", shared=False)
    def bill() -> None: ...

    (finding,) = settings.tasks_above(Case(Redlock(NODES), [], app))

    assert (finding.code, finding.severity) == ("without-lock", ERROR)
    assert finding.fact.startswith("Task above runs the body of the task bill without")


def test_rate_that_counts_for_longer_than_a_quarantine() -> None:
    """Nodes that restart may forget starts. In a period that is short, none votes."""
    finding = only(found(settings.rates, rate="10/h"))

    assert (finding.code, finding.severity) == ("rate", Severity.NOTE)
    assert "counts starts for 3600 s (its rate)" in finding.fact
    assert "votes again after 62 s (redlock_max_ttl)" in finding.fact
    assert "raise redlock_max_ttl to 3600 s" in finding.remedy
    long = {"max_ttl": 3600.0}
    assert found(settings.rates, timing=long, rate="10/h") == []
    assert found(settings.rates, rate="10/m") == []  # as limit-how-often.md says
    assert found(settings.rates, timing={"restart_guard": False}, rate="10/h") == []


@pytest.mark.parametrize("policy", ["retry", "buffer_one", "cancel_running"])
def test_calls_that_come_back_late_if_their_worker_is_killed(policy: str) -> None:
    """Redis delivers them again after an hour, RabbitMQ at once."""
    (finding,) = found(settings.kills, on_conflict=policy)

    assert (finding.code, finding.severity) == ("killed-while-waiting", Severity.NOTE)
    assert "Duplicates of bill wait with a countdown" in finding.fact
    assert "come back after 3600 s (visibility_timeout)" in finding.fact
    soon = {"broker_transport_options": {"visibility_timeout": 300}}
    rabbit = {"broker_url": "amqp://rabbit"}
    for conf in (soon, rabbit):
        assert found(settings.kills, settings=conf, on_conflict=policy) == []
    assert found(settings.kills, on_conflict="wait") == []
    assert found(settings.kills, on_conflict=lambda _: "retry") == []


def test_message_of_a_dead_worker_comes_back_before_its_lock_ends() -> None:
    """The lock of a worker that has died may last for longer than its message."""
    short = {"broker_transport_options": {"visibility_timeout": 20}}

    locked = only(found(settings.visibility, settings=short, acks_late=True))

    assert "is locked for 30 s (its ttl): after 20 s" in locked.fact


def test_acks_late_without_reject_on_worker_lost() -> None:
    """Each of the two settings counts, for the task or for all tasks."""
    finding = only(found(settings.acks_late, acks_late=True))

    assert (finding.code, finding.severity) == ("acks-late", WARNING)
    everywhere = only(found(settings.acks_late, settings={"task_acks_late": True}))
    assert everywhere.code == "acks-late"
    both = {"task_acks_late": True, "task_reject_on_worker_lost": True}
    assert found(settings.acks_late, settings=both) == []


def test_call_that_celery_retries_for_its_lost_process_is_not_lost() -> None:
    """Celery before 5.7 does not know the option, which is then an attribute alone."""
    findings = found(settings.acks_late, acks_late=True, retry_on_worker_lost=True)

    assert len(findings) == (not hasattr(Task, "retry_on_worker_lost"))


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


def test_broker_that_hangs_does_not_stop_the_doctor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Redis that is frozen takes the connection, and replies never."""
    monkeypatch.setattr(inquiry, "_WITH_CONNECTION", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        app = Celery(broker=url, set_as_current=False)

        assert Workers(app).by_nodes(["a"]) == ([], [])


def test_workers_that_cannot_be_asked_are_said_to_be_unknown() -> None:
    """The broker is asked once, and no rule takes its silence for good news."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"amqp://me:secret@127.0.0.1:{closed.getsockname()[1]}//"
        app = Celery(broker=url, set_as_current=False)
        app.conf.redlock_nodes = NODES

        @singleton_task(app=app, name="mine", shared=False, limit=2)
        def job() -> None: ...

        case = Case(Redlock(NODES), [], app)
        codes = (workers.versions, workers.nodes, workers.processes, workers.broker)
        (found,) = findings_of(case, codes)

    assert (found.code, found.severity) == ("broker", Severity.NOTE)
    assert "could not be asked: the broker did not answer (" in found.fact
    assert "secret" not in str(found)
    assert case.workers.told("stats") == {}


@pytest.mark.parametrize("state", [NodeState.SILENT, NodeState.REFUSES])
def test_server_that_does_not_tell_whether_it_writes_has_no_finding_about_it(
    state: NodeState,
) -> None:
    """It denies INFO, or does not answer. Without the guard its disk matters."""
    case = Case(
        Redlock(NODES, restart_guard=False), [NodeReport(NodeStatus("a", state))]
    )

    assert list(servers.persistence(case)) == []


@pytest.mark.parametrize("rule", [servers.replication, servers.memory])
def test_server_that_counts_in_words_does_not_stop_the_doctor(rule: Any) -> None:
    """Not all who speak the protocol of Redis reply to INFO as Redis does."""
    info = {"connected_slaves": "none", "maxmemory": "unlimited"}
    status = NodeStatus("a", NodeState.VOTES, info=info)

    assert list(rule(Case(Redlock(NODES), [NodeReport(status)]))) == []
