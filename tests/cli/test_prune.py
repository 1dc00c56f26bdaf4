"""``redlock prune``: delete old records of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.project import Project


def test_prune_without_records_deletes_none(project: Project) -> None:
    """An app without tasks that record their calls has nothing to delete."""
    run = project.redlock("prune")

    assert (run.code, run.out) == (0, "0 records deleted.\n")
    assert project.redlock("prune", "--node", "redis://a").code == 2
    assert project.redlock("prune", "--json").out == '{"deleted": 0}\n'
