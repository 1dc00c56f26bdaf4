"""``redlock explain NAME``: what would happen to a call, and why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from celery import Celery

from celery_redlock import SingletonTask
from celery_redlock.cli.explain import _task
from celery_redlock.cli.output.session import Failure
from celery_redlock.locks.limits import Limit
from tests.cli.project import Project


def test_explain_of_a_free_call_exits_with_0(project: Project) -> None:
    """It shows the key, and that the call would be published and run."""
    run = project.redlock("explain", "proj.send_invoice", "--args", "[42]")

    assert run.code == 0, run.err
    assert run.out.splitlines() == [
        "key         invoice:42",
        "published   it would be published.",
        "executed    it would run.",
    ]


def test_explain_names_the_call_in_the_way(project: Project) -> None:
    """It says what the policy decides, and exits with 1."""
    project.hold("invoice:42")

    run = project.redlock("explain", "proj.send_invoice", "--kwargs", '{"number": 42}')

    assert run.code == 1
    assert (
        "executed    it would be skipped: The same call 'invoice:42' runs as" in run.out
    )
    assert "worker-1 (pid 4711)" in run.out
    # A holder renews its lock: what is left now is no limit of the run.
    assert re.search(r"for \d\d\.\d s more unless renewed, as", run.out)


def test_explain_in_json_has_everything(project: Project) -> None:
    """A program gets the decisions, and the calls that they are about."""
    project.hold("invoice:42")

    run = project.redlock("explain", "proj.send_invoice", "--args", "[42]", "--json")

    document = run.document
    assert document["key"] == "invoice:42"
    assert (document["would_run"], document["known"]) == (False, True)
    publish = {"decision": "publish", "goes_on": True, "reason": None}
    assert document["publish"] == publish
    assert document["execute"]["decision"] == "skip"
    assert document["running"]["task_id"] == "id-of-invoice:42"
    assert 0 < document["running"]["ttl_left"] <= 60
    assert document["waiting"] is None


def test_explain_shows_the_permits_in_use(project: Project) -> None:
    """It names their holders, and says when the next start is possible."""
    options = {"key": "imports", "limit": 3, "rate": "2/m"}
    limits = (Limit("imports", 3), Limit("imports", 2, 60.0))
    project.hold("imports", limits=limits)
    one = project.redlock("explain", "proj.import", proj_import=options)
    project.hold("imports", limits=limits)
    words = ("explain", "proj.import")
    two = project.redlock(*words, proj_import=options)
    document = project.redlock(*words, "--json", proj_import=options).document

    assert (one.code, two.code) == (0, 1)
    assert "imports: 1 of 3 permits in use." in one.out
    assert "imports: 1 of 2 starts in 60 s are taken.\n" in one.out
    assert "it would be republished" in two.out
    assert "2 of 2 starts in 60 s are taken. The next one is possible in" in two.out
    assert two.out.count("id-of-imports") == 4  # its lock, and its start
    at_once, starts = document["limits"]
    assert (at_once["most"], at_once["in_use"]) == (3, 2)
    assert (starts["period"], starts["in_use"]) == (60.0, 2)
    assert [permit["kept"] for permit in starts["permits"]] == [True, True]


def test_explain_counts_no_permits_that_nodes_may_have_forgotten(
    project: Project,
) -> None:
    """A majority has restarted and answers. No number of permits is known."""
    options = {"key": "imports", "limit": 3}
    for _ in range(2):
        project.hold("imports", limits=(Limit("imports", 3),))
    for node in project.nodes[:2]:
        node.restart()

    words = ("explain", "proj.import")
    run = project.redlock(*words, proj_import=options)
    document = project.redlock(*words, "--json", proj_import=options).document

    assert run.code == 3
    assert "permits in use" not in run.out
    assert (document["known"], document["limits"]) == (False, None)


def test_explain_imports_the_modules_of_the_app(
    project: Project, tmp_path: Path
) -> None:
    """A worker imports those of `include`, so the task of one of them is found."""
    (tmp_path / "proj_reports.py").write_text(
        "from celery_redlock import singleton_task\n"
        "from proj import app\n\n\n"
        "@singleton_task(app=app, name='proj.report', shared=False)\n"
        "def report() -> None: ...\n"
    )
    project.change(include=["proj_reports"])

    run = project.run("explain", "proj.report")

    assert run.code == 0, run.err
    assert "it would run" in run.out


def test_explain_of_a_wrong_call_is_wrong_usage(project: Project) -> None:
    """Unknown tasks, wrong JSON and wrong arguments end with exit code 2."""
    wrong_name = project.redlock("explain", "proj.send_invoise")
    no_lock = project.redlock("explain", "celery.chord")
    no_json = project.redlock("explain", "proj.send_invoice", "--args", "42,")
    no_list = project.redlock("explain", "proj.send_invoice", "--args", "42")
    no_fit = project.redlock("explain", "proj.send_invoice", "--args", "[1, 2]")

    answers = wrong_name, no_lock, no_json, no_list, no_fit
    assert [answer.code for answer in answers] == [2] * 5
    assert "Did you mean 'proj.send_invoice'?" in wrong_name.err
    assert "takes no lock" in no_lock.err
    assert "--args is not JSON" in no_json.err
    assert "write a JSON list" in no_list.err
    assert "send_invoice" in no_fit.err


def test_task_of_celery_takes_no_lock() -> None:
    """Also where all tasks of the app have our class."""
    app = Celery("ours", task_cls=SingletonTask, set_as_current=False)
    app.finalize()

    with pytest.raises(Failure, match="takes no lock"):
        _task(app, "celery.chord")
