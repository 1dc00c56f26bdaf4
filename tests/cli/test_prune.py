"""``redlock prune``: delete old records of calls."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.cli.project import Project


def test_prune_without_records_deletes_none(project: Project) -> None:
    """An app without tasks that record their calls has nothing to delete."""
    run = project.redlock("prune")

    assert (run.code, run.out) == (0, "0 records deleted.\n")
    assert project.redlock("prune", "--node", "redis://a").code == 2
    assert project.redlock("prune", "--json").out == '{"deleted": 0}\n'


def test_database_that_is_away_is_told(project: Project, tmp_path: Path) -> None:
    """An operator gets no traceback."""
    engine = create_engine(f"sqlite:///{tmp_path / 'away' / 'db'}")

    run = project.redlock(
        "prune", proj_import={"exactly_once_in": lambda: Session(engine)}
    )

    assert run.code == 3
    assert "A database failed; what was deleted before stays deleted: " in run.err
    assert "unable to open database file" in run.err
