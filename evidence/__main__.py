"""``python -m evidence``: bring each bug back, and take each rule away.

Exit code 0: each tool has found what it should find, and each fix holds.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from evidence.counts import COUNTS
from evidence.figures import Figures
from evidence.page import all_ways, is_stale, write
from evidence.ways import shown_by

if TYPE_CHECKING:
    from evidence.ways import Shown, Way


@click.command()
@click.argument("names", nargs=-1)
@click.option("--write", "writes", is_flag=True, help="Write the page anew.")
@click.option("--stale", is_flag=True, help="Only say whether the page is stale.")
@click.option("--short", is_flag=True, help="Leave out what takes more than 30 s.")
def main(names: tuple[str, ...], *, writes: bool, stale: bool, short: bool) -> None:
    """Bring back the bugs with these NAMES, or do all that the page shows.

    `rule` is all rules, `rule:drift` is one of them, `counts` are the figures of all
    tools, and `counts:mutants` is one of them.
    """
    figures, ways = Figures(), all_ways()
    if stale:
        is_old = is_stale(figures)
        click.echo("Stale: python -m evidence --write" if is_old else "Up to date.")
        sys.exit(is_old)
    chosen = {
        name: way
        for name, way in ways.items()
        if (not names or any(_is_named(name, given) for given in names))
        and not (short and way.is_long)
    }
    counts = {
        label: count
        for label, count in COUNTS.items()
        if not names or any(_is_named(_count_name(label), given) for given in names)
    }
    known_names = [*ways, *map(_count_name, COUNTS)]
    unknown = [
        given
        for given in names
        if not any(_is_named(name, given) for name in known_names)
    ]
    if unknown:
        raise click.UsageError(f"No bug, rule or count has the name {unknown[0]!r}.")
    is_good = True
    known: dict[Way, Shown] = {}  # a way may belong to several names
    for name, way in chosen.items():
        click.echo(f"{name}: {way.text()}")
        shown = known[way] = known.get(way) or shown_by(way)
        is_good &= shown.is_found is not False
        words = {True: "found", False: "NOT FOUND", None: "not brought back"}
        word = words[shown.is_found]
        click.echo(f"    {word}: {shown.detail} ({shown.seconds:.1f} s)")
        figures.add(name, shown)
    for label, count in counts.items():
        figures.counts[label] = count()
        click.echo(f"{label}: {figures.counts[label]}")
    if writes:
        figures.write({*ways})
        write(figures)
    sys.exit(not is_good)


def _count_name(label: str) -> str:
    """Return the name of a count on the command line, such as ``counts:mutants``."""
    return f"counts:{label.lower().replace(',', '').replace(' ', ':')}"


def _is_named(name: str, given: str) -> bool:
    return name == given or name.startswith(f"{given}:")


if __name__ == "__main__":
    main()
