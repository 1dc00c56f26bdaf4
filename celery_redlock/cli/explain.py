"""``explain``: what would happen to a call of a task, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.basics.spelling import did_you_mean
from celery_redlock.cli.output.format import (
    finite,
    holder_document,
    keys_text,
    limit_lines,
    limits_document,
    permits_table,
)
from celery_redlock.cli.output.ink import painted
from celery_redlock.cli.output.session import (
    DONE,
    ERROR,
    USAGE,
    WARNING,
    Command,
    Failure,
    Session,
)
from celery_redlock.errors import FingerprintError
from celery_redlock.options.lock_options import lock_tasks

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.line.claims import ExistingJob
    from celery_redlock.task.explain import Explanation, Step
    from celery_redlock.task.singleton_task import SingletonTask


@click.command(cls=Command, short_help="Say what would happen to a call, and why.")
@click.argument("name")
@click.option("--args", default="[]", help="A JSON list.", metavar="JSON")
@click.option("--kwargs", default="{}", help="A JSON object.", metavar="JSON")
@click.pass_obj
def explain(session: Session, *, name: str, args: str, kwargs: str) -> int:
    """Say what would happen to a call of the task NAME, without any change.

    Shows the key, whether the call would be published and would run now, which call is
    in its way, and what the task's policies would decide.

    Where keys have limits, it shows how many permits are in use, who has them, and of
    a rate when the next start is possible.

    Exits with 0 if a worker would run it now, with 1 if not, and with 3 if too few
    nodes answered to tell.
    """
    positional = _json("--args", args, list, 'a JSON list, such as [42, "x"]')
    named = _json("--kwargs", kwargs, dict, 'such as {"number": 42}')
    try:
        found = _task(session.loaded_app, name).explain(*positional, **named)
    except FingerprintError as error:
        raise Failure(str(error), USAGE) from error
    lines = [
        f"{'key':12}{keys_text(found.key)}",
        f"{'published':12}it would {_painted(found.publish)}",
        f"{'executed':12}it would {_painted(found.execute)}",
    ]
    if found.limits:
        nodes = len(session.redlock.labels)
        permits = permits_table(found.limits, nodes=nodes)
        lines += ["", *limit_lines(found.limits), *([""] if permits else []), *permits]
    session.tell(lines, lambda: _document(found))
    if not found.is_known:
        return ERROR
    return DONE if found.would_run else WARNING


def _task(app: Celery, name: str) -> SingletonTask:
    ours: dict[str, SingletonTask] = {task.name: task for task in lock_tasks(app)}
    if name in ours:
        return ours[name]
    fact = "takes no lock" if name in app.tasks else "does not exist"
    raise Failure(f"The task {name!r} {fact}. {did_you_mean(name, ours)}", USAGE)


def _json(option: str, text: str, kind: type, example: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Failure(f"{option} is not JSON: {error}.", USAGE) from error
    if not isinstance(value, kind):
        raise Failure(f"{option} is {text}; write {example}.", USAGE)
    return value


def _document(found: Explanation) -> dict[str, Any]:
    """Return the JSON document. ``limits`` is None where it cannot be told."""
    return {
        "task": found.task,
        "key": found.key,
        "would_run": found.would_run,
        "known": found.is_known,
        "publish": _step(found.publish),
        "execute": _step(found.execute),
        "limits": limits_document(found.limits, permits=True)
        if found.limits or found.is_known
        else None,
        "running": _job(found.running),
        "waiting": _job(found.waiting),
        "succeeded": _job(found.succeeded),
    }


def _painted(step: Step) -> str:
    return painted(str(step), "good" if step.goes_on else "warning")


def _step(step: Step) -> dict[str, Any]:
    facts = {"decision": step.decision, "goes_on": step.goes_on}
    return {**facts, "reason": step.reason or None}


def _job(job: ExistingJob | None) -> dict[str, Any] | None:
    if job is None:
        return None
    return {**holder_document(job.holder), "ttl_left": finite(job.left)}
