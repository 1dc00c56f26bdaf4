"""``init`` and ``reconfigure``: begin a deployment, change it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.cli.session import ERROR, Command, Failure, Session
from celery_redlock.cli.table import Cell, Column, duration, painted, table
from celery_redlock.cli.words import plural
from celery_redlock.core.examination import Standing, glance
from celery_redlock.core.reconfiguration import reconfigure as move
from celery_redlock.core.redlock import Redlock
from celery_redlock.errors import ConfigurationError, RedlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.examination import Glance

__all__ = ["init", "node_columns", "node_row", "reconfigure"]


def node_cell(seen: Glance) -> Cell:
    """Say how a node stands in the vote."""
    if seen.standing is Standing.VOTES:
        return Cell("votes", "good")
    if seen.standing is Standing.QUARANTINED:
        return Cell(f"in quarantine for {duration(seen.wait)}", "warning")
    if seen.standing in (Standing.NEW, Standing.UNSYNCED):
        return Cell(seen.standing.value, "warning")
    return Cell(seen.reason if seen.standing is not Standing.ESTRANGED else seen.standing.value, "bad")
