"""``celery -A proj redlock ...``: commands for operators.

One file is one command: ``ls.py`` defines the click command ``ls``. The name of the
file registers it, so a new command is a new file. What all commands share is in
``output``: ``output.session`` first, then any command, for example ``show``.

Scripts can rely on the exit code:

====  =====================================================================
0     done, and nothing needs attention
1     a warning; or nothing was found, or nothing was done
2     the command line or a setting is wrong; nothing was done
3     an error: too few nodes answered, or locks are not safe (``doctor``)
====  =====================================================================

Every command takes ``--json``: one document on stdout, and nothing else there.
Questions and errors go to stderr. Only ``run`` takes none, and has exit codes of its
own: it ends as the command that it runs.

Every ``celery`` command imports this module, so it imports no command before the
command is used.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

import click
from celery.bin.base import handle_preload_options
from click_didyoumean import DYMGroup  # type: ignore[import-untyped]

# Imported here, because `celery report` must show no passwords.
from celery_redlock.app import masking  # noqa: F401

__all__ = ["redlock"]


class _Commands(DYMGroup):
    """Finds each command in the file of its name; imports it on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        found = pkgutil.iter_modules(__path__)
        files = {module.name for module in found if not module.ispkg}
        return sorted(files.union(super().list_commands(ctx)))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        command: click.Command = getattr(import_module(f"{__name__}.{name}"), name)
        return command


@click.group(cls=_Commands)
@click.pass_context
@handle_preload_options
def redlock(ctx: click.Context, **_: object) -> None:
    """Inspect and repair the lock nodes of celery-redlock.

    Exit codes: 0 all is well, 1 something was found or not done, 2 wrong usage or
    settings, 3 too few nodes answered or locks are not safe.
    """
