"""``celery -A proj redlock ...``: look after the nodes and the locks on them.

Scripts can go by the exit code:

====  =====================================================================
0     done, and nothing was found that wants attention
1     a warning; or what was asked for was not found, or was not done
2     the command line or a setting is wrong; nothing was done
3     an error: too few nodes answered, or locks are not safe (``doctor``)
====  =====================================================================

Every command takes ``--json``: one document on stdout, and nothing else there.
Questions and errors go to stderr.

This module is imported with every ``celery`` command, so each of ours is in a
module of its own that is imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
from celery.bin.base import handle_preload_options
from click_didyoumean import DYMGroup  # type: ignore[import-untyped]

# Imported here, because `celery report` must show no passwords.
from celery_redlock import masking  # noqa: F401

__all__ = ["redlock"]

# In which module below this one each command is, in the order of the help.
_COMMANDS = {
    "ls": "locks",
    "show": "locks",
    "explain": "explain",
    "release": "release",
    "leaked": "leaked",
    "top": "top",
    "leader": "leader",
    "doctor": "doctor",
    "bench": "bench",
    "init": "deployment",
    "reconfigure": "deployment",
    "dev": "dev",
}


class _Commands(DYMGroup):
    """Imports a command when it is asked for. Corrects a name that is nearly one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return [*_COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command, or None when there is none of this name."""
        command: click.Command | None
        if name in _COMMANDS:
            command = getattr(import_module(f"{__name__}.{_COMMANDS[name]}"), name)
        else:
            command = super().get_command(ctx, name)
        return command


@click.group(cls=_Commands)
@click.pass_context
@handle_preload_options
def redlock(ctx: click.Context, **_: Any) -> None:
    """Look after the lock nodes of celery-redlock.

    Exit codes: 0 all is well, 1 something was found or not done, 2 wrong usage or
    settings, 3 too few nodes answered or locks are not safe.
    """
