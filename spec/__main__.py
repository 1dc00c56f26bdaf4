"""``python -m spec``: check all models with all rules, and without each of them.

Exit code 0: no search with all rules found an error, and each without a rule found one.
"""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.table import Table

from spec.catalogue import RULES
from spec.check import check_rule, check_run, in_parallel, missing
from spec.page import is_stale, runs_of, write


@click.command()
@click.option("--large", is_flag=True, help="Search the larger bounds as well.")
@click.option("--jobs", default=1, show_default=True, help="Searches at a time.")
@click.option("--write", "writes", is_flag=True, help="Write the page anew.")
@click.option("--stale", is_flag=True, help="Only say whether the page is stale.")
def main(*, large: bool, jobs: int, writes: bool, stale: bool) -> None:
    """Check the specification with Spin."""
    if stale:
        click.echo(
            "The page is stale: python -m spec --write" if is_stale() else "Up to date."
        )
        sys.exit(is_stale())
    if name := missing():
        click.echo(f"{name} is missing. On Debian and Ubuntu: apt install spin gcc")
        sys.exit(2)
    console = Console()
    usual = runs_of(large=False)
    runs = [*usual, *(runs_of(large=True) if large else [])]
    table = Table("model", "bounds", "states", "depth", "MB", "s", "result")
    is_good = True
    full = []
    for run, result in zip(runs, in_parallel(check_run, runs, jobs), strict=True):
        good = not result.errors and result.is_complete
        is_good &= good
        full.append(result)
        word = "no error" if good else "ERROR" if result.errors else "NOT COMPLETE"
        numbers = (f"{result.states:,}", f"{result.depth:,}")
        used = (f"{result.memory_mb:,.0f}", f"{result.cpu:,.1f}")
        table.add_row(run.model, run.bounds, *numbers, *used, word)
    console.print(table)
    table = Table("model", "rule that is taken away", "states", "s", "result")
    found = []
    for rule, result in zip(RULES, in_parallel(check_rule, RULES, jobs), strict=True):
        is_good &= bool(result.errors and result.history)
        found.append(result)
        word = f"found in {len(result.history)} steps" if result.errors else "NOT FOUND"
        numbers = (f"{result.states:,}", f"{result.cpu:,.1f}")
        table.add_row(rule.model, rule.name, *numbers, word)
    console.print(table)
    if writes and is_good:
        write(full[: len(usual)], found)
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
