"""``explain``: what would happen to a call of a task, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.cli.output.format import holder_document, painted
from celery_redlock.cli.output.session import (
    DONE,
    ERROR,
    USAGE,
    WARNING,
    Command,
    Failure,
)
from celery_redlock.core.spelling import did_you_mean
from celery_redlock.task.singleton_task import SingletonTask

if TYPE_CHECKING:
    from celery_redlock.cli.output.session import Session
    from celery_redlock.core.records.claims import ExistingJob
    from celery_redlock.task.explain import Explanation, Step

__all__ = ["explain"]


@click.command(cls=Command, short_help="Say what would happen to a call, and why.")
@click.argument("name")
@click.option("--args", default="[]", help="A JSON list.", metavar="JSON")
@click.option("--kwargs", default="{}", help="A JSON object.", metavar="JSON")
@click.pass_context
def explain(ctx: click.Context, *, name: str, args: str, kwargs: str) -> None:
    """Say what would happen to a call of the task NAME, without any change.

    Shows the key, whether the call would be published and would run now, which call is
    in its way, and what the task's policies would decide.

    Exits with 0 if a worker would run it now, with 1 if not, and with 3 if too few
    nodes answered to tell.
    """
    session: Session = ctx.obj
    positional, named = _json("--args", args, list), _json("--kwargs", kwargs, dict)
    found = _task(session.app, name).explain(*positional, **named)
    lines = [
        f"{'key':12}{found.key}",
        f"{'published':12}it would {_painted(found.publish)}",
        f"{'executed':12}it would {_painted(found.execute)}",
    ]
    session.tell(lines, lambda: _document(found))
    if not found.is_known:
        ctx.exit(ERROR)
    ctx.exit(DONE if found.would_run else WARNING)


def _task(app: Any, name: str) -> SingletonTask:
    ours = {n: t for n, t in app.tasks.items() if isinstance(t, SingletonTask)}
    if name in ours:
        return ours[name]
    fact = "takes no lock" if name in app.tasks else "does not exist"
    raise Failure(f"The task {name!r} {fact}. {did_you_mean(name, ours)}", USAGE)


def _json(option: str, text: str, kind: type) -> Any:
    examples: dict[type, str] = {
        list: 'a JSON list, such as [42, "x"]',
        dict: 'such as {"number": 42}',
    }
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Failure(f"{option} is not JSON: {error}.", USAGE) from error
    if not isinstance(value, kind):
        raise Failure(f"{option} is {text}; write {examples[kind]}.", USAGE)
    return value


def _document(found: Explanation) -> dict[str, Any]:
    return {
        "task": found.task,
        "key": found.key,
        "would_run": found.would_run,
        "known": found.is_known,
        "publish": _step(found.publish),
        "execute": _step(found.execute),
        "running": _job(found.running),
        "waiting": _job(found.waiting),
        "succeeded": _job(found.succeeded),
    }


def _painted(step: Step) -> str:
    return painted(str(step), "good" if step.goes_on else "warning")


def _step(step: Step) -> dict[str, Any]:
    return {
        "decision": step.decision,
        "goes_on": step.goes_on,
        "reason": step.reason or None,
    }


def _job(job: ExistingJob | None) -> dict[str, Any] | None:
    return (
        None if job is None else {**holder_document(job.holder), "ttl_left": job.left}
    )
