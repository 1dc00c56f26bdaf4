"""Django's system checks have the findings of ``celery redlock doctor``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_redlock import singleton_task
from celery_redlock.contrib.django.checks import TAG, check_nodes, check_project
from celery_redlock.devnodes import DevNodes
from tests.contrib.storages import use_django
from tests.nodes.support import PATIENT, run_python

Project = Callable[..., Any]

NOWHERE = ["redis://127.0.0.1:1/0", "redis://127.0.0.1:2/0", "redis://127.0.0.1:3/0"]


@pytest.fixture
def project(sqlite: str) -> Iterator[Project]:
    """Give a function that makes the site's Celery app, with a lock task."""
    use_django(sqlite)
    from django.test import override_settings  # noqa: PLC0415  (Django is set up now)

    with contextlib.ExitStack() as stack:

        def make(options: dict[str, Any] | None = None, **settings: Any) -> Any:
            app = Celery("office", set_as_current=False, broker="memory://")
            app.conf.update({"result_backend": "cache+memory://", **settings})
            stack.callback(app.close)
            stack.enter_context(override_settings(REDLOCK_CELERY_APP=app))
            if options is not None:

                @singleton_task(app=app, name="office.work", shared=False, **options)
                def work() -> None:
                    """Do nothing."""

            return app

        yield make


def by_id(messages: Any) -> dict[str, Any]:
    """Return messages of checks by their ids, without the app's label."""
    return {one.id.removeprefix(f"{TAG}."): one for one in messages}


def run_checks(**options: Any) -> dict[str, Any]:
    """Return the messages of Django's own run of our checks."""
    from django.core.checks import run_checks as run  # noqa: PLC0415

    return by_id(run(tags=[TAG], **options))


def test_settings_that_work_give_no_message(project: Project) -> None:
    """Without `--deploy`, the checks do not connect to nodes."""
    project({}, redlock_nodes=NOWHERE)

    assert run_checks() == {}


@pytest.mark.parametrize(
    ("options", "settings", "code", "said"),
    [
        ({}, {"redlock_tll": 5}, "settings", "There is no setting redlock_tll"),
        ({}, {"redlock_nodes": None}, "settings", "redlock_nodes is not set"),
        ({"ttl": 90}, {}, "option", "office.work"),
        ({}, {"imports": ["no_such_module"]}, "tasks", "no_such_module"),
    ],
    ids=["wrong setting", "no nodes", "option against a setting", "no import"],
)
def test_error_of_the_project_is_an_error_with_its_name(
    project: Project, options: Any, settings: Any, code: str, said: str
) -> None:
    """The check finds what would end a worker at its start, and raises nothing."""
    settings = {"redlock_nodes": NOWHERE, **settings}
    project(options, **{name: v for name, v in settings.items() if v is not None})

    found = run_checks()[code]

    assert found.is_serious()
    assert said in f"{found.msg} {found.obj}"


def test_finding_of_several_tasks_is_one_message(project: Project) -> None:
    """Each command of `manage.py` prints it. Ten tasks do not make it ten pages."""
    app = project({"rate": "10/h"}, redlock_nodes=NOWHERE)

    @singleton_task(app=app, name="office.zeal", shared=False, rate="10/h")
    def zeal() -> None:
        """Do nothing."""

    messages = check_project()

    assert [one.obj for one in messages if one.id == f"{TAG}.rate"] == ["office.work"]
    assert "The same is true of office.zeal." in by_id(messages)["rate"].msg


def test_site_without_locks_is_no_error(project: Project) -> None:
    """A site that uses no locks yet has a note only."""
    project()

    assert not run_checks()["settings"].is_serious()


@pytest.mark.long
def test_site_whose_app_is_not_imported_is_told_so() -> None:
    """Its settings are those of the app, which these checks have not seen."""
    program = """
from celery_redlock.contrib.django.checks import check_project
from django.conf import settings
settings.configure(INSTALLED_APPS=["celery_redlock.contrib.django"])
import django; django.setup()
(found,) = check_project()
print(found.id, found.msg)
"""

    (said,) = run_python(program)

    assert said.startswith("celery_redlock.app No Celery app of the project")


def test_findings_about_tasks_have_doctors_code_and_remedy(project: Project) -> None:
    """The id is doctor's code, the hint its remedy, the object the task."""
    project({"acks_late": True}, redlock_nodes=NOWHERE)

    found = run_checks()["acks-late"]

    assert "acks_late without reject_on_worker_lost" in found.msg
    assert "reject_on_worker_lost=True" in found.hint
    assert found.obj == "office.work"


@pytest.mark.parametrize("module", ["no_such_project", "broken_project"])
def test_app_that_cannot_be_imported_is_an_error(
    project: Project, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names REDLOCK_CELERY_APP; the checks of nodes return nothing."""
    (tmp_path / "broken_project.py").write_text("raise KeyError('no such setting')")
    monkeypatch.syspath_prepend(tmp_path)
    project()
    from django.test import override_settings  # noqa: PLC0415

    with override_settings(REDLOCK_CELERY_APP=f"{module}:app"):
        found = by_id(check_project())
        nodes = check_nodes()

    assert "REDLOCK_CELERY_APP" in found["tasks"].hint
    assert nodes == []


def test_nodes_are_inspected_by_deployment_checks_only(
    project: Project, three_nodes: DevNodes
) -> None:
    """`check --deploy` has the findings about nodes; `check` does not."""
    project({}, redlock_nodes=three_nodes.urls, redlock_node_timeout=PATIENT)
    three_nodes.nodes[0].kill()

    usual, deployed = run_checks(), run_checks(include_deployment_checks=True)

    assert usual == {}
    found = deployed["unreachable"]
    assert found.obj == f"127.0.0.1:{three_nodes.nodes[0].port}/0"
    assert found.hint == "Start it, or check the network and the firewall."
    assert "quorum-edge" in deployed


def test_lost_quorum_fails_a_deployment_check(project: Project) -> None:
    """Doctor's errors are errors: `manage.py check --deploy` ends with exit code 1."""
    from django.core.checks import ERROR  # noqa: PLC0415

    project({}, redlock_nodes=NOWHERE, redlock_node_timeout=PATIENT)

    found = run_checks(include_deployment_checks=True)

    assert found["no-quorum"].level == ERROR


def test_deployment_checks_report_nothing_twice(
    project: Project, three_nodes: DevNodes
) -> None:
    """A finding of both kinds of check is reported by one of them."""
    nodes = {"redlock_nodes": three_nodes.urls, "redlock_node_timeout": PATIENT}
    project({"acks_late": True}, **nodes)

    ids = [one.id for one in [*check_project(), *check_nodes()]]

    assert f"{TAG}.acks-late" in ids
    assert len(ids) == len(set(ids))


def test_checks_do_not_call_themselves(project: Project) -> None:
    """Celery runs all checks when it imports tasks, as these checks make it do."""
    app = project({"acks_late": True}, redlock_nodes=NOWHERE)
    from celery.signals import import_modules  # noqa: PLC0415

    inner: list[Any] = []

    def run_all_checks(**_: Any) -> None:
        inner.append(run_checks())

    import_modules.connect(run_all_checks, sender=app)
    try:
        outer = run_checks()
    finally:
        import_modules.disconnect(run_all_checks, sender=app)

    assert inner == [{}]
    assert set(outer) == {"acks-late"}


def test_package_is_importable_without_django() -> None:
    """The package imports Django on first use only."""
    printed = run_python(
        "import sys\n"
        "sys.modules['django'] = None\n"
        "import celery_redlock.contrib.django as it\n"
        "print('FencedModel' in it.__all__)\n"
    )

    assert printed == ["True"]
