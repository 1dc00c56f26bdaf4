"""``celery -A proj redlock ...``: look after the nodes."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand, handle_preload_options

# Imported with every `celery` command: `celery report` must show no passwords.
from celery_redlock import masking  # noqa: F401
from celery_redlock.cli.leader import leader

__all__ = ["redlock"]


@click.group()
def redlock() -> None:
    """Look after the lock nodes of celery-redlock."""


@redlock.command(cls=CeleryCommand)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
@handle_preload_options
def init(ctx: click.Context, *, yes: bool) -> None:
    """Start a brand-new deployment of nodes without waiting.

    A node that has lost its memory does not vote for as long as a lock can last,
    and a new node looks just like that. This command says that there is nothing to
    remember. It refuses when a node holds live locks.
    """
    from celery_redlock.errors import RedlockError  # noqa: PLC0415
    from celery_redlock.runtime import runtime_of  # noqa: PLC0415

    try:
        service = runtime_of(ctx.obj.app).redlock
        ctx.obj.echo(f"{len(service.labels)} nodes: {', '.join(service.labels)}")
        if not yes:
            question = "Has no worker used them for longer than redlock_max_ttl?"
            click.confirm(question, abort=True)
        service.initialize()
    except RedlockError as error:
        raise click.ClickException(str(error)) from error
    ctx.obj.echo("They vote from now on.")


redlock.add_command(leader)
