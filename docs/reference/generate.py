"""Fill the generated blocks of the pages: ``python -m docs.reference.generate``.

A generated block stands between two marks::

    <!-- generated: settings -->
    ...
    <!-- end of settings -->

Everything outside of the marks is written by hand. Each block comes from public names
of the package: fields and docstrings of dataclasses, words of policies, commands,
signals, and metrics. ``tests/test_docs.py`` fails when a page is out of date.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from celery import Celery
from prometheus_client import CollectorRegistry

from celery_redlock import LockOptions, errors, metrics, policies, signals
from celery_redlock.cli import redlock
from celery_redlock.options.arguments import LockArguments
from celery_redlock.settings import Settings
from docs.contributing import draw_house

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

DOCS = Path(__file__).resolve().parents[1]
MARKS = re.compile(
    r"<!-- generated: (?P<name>[\w-]+) -->\n(?P<block>.*?)<!-- end of (?P=name) -->",
    re.DOTALL,
)


# Options of most commands, which the page explains once.
OF_MOST = {"--node", "--json", "--help"}


# -- text ----------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sentence(text: str) -> str:
    """Return text of a docstring as one line of Markdown, fit for a table."""
    words = " ".join(text.split()).replace("``", "`").replace("|", "\\|")
    return re.sub(r":\w+:`", "`", words)


def summary(thing: object) -> str:
    """Return the first paragraph of a docstring."""
    return sentence((inspect.getdoc(thing) or "").partition("\n\n")[0])


def attributes_of(thing: object) -> dict[str, str]:
    """Return what a docstring says under ``Attributes:``, by name."""
    _, _, section = (inspect.getdoc(thing) or "").partition("\nAttributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line and not line.startswith(" "):
            break
        if new := re.match(r"    (\w+): (.*)", line):
            name, text = new.groups()
            found[name] = text
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return {name: sentence(text) for name, text in found.items()}


def rows_of_tables(text: str) -> Iterator[list[str]]:
    """Yield the rows of all simple tables of a docstring, without their heads."""
    lines = text.splitlines()
    borders = [n for n, line in enumerate(lines) if re.fullmatch(r"=+( +=+)+", line)]
    for _, first, last in zip(*[iter(borders)] * 3, strict=False):
        starts = [match.start() for match in re.finditer("=+", lines[first])]
        row: list[str] = []
        for line in lines[first + 1 : last]:
            ends = [*starts[1:], None]
            cells = [line[a:b].strip() for a, b in zip(starts, ends, strict=True)]
            if cells[0] and row:
                yield row
            if cells[0]:
                row = cells
            else:  # the row goes on
                row = [f"{a} {b}".strip() for a, b in zip(row, cells, strict=True)]
        if row:
            yield row


# -- settings and options ------------------------------------------------------------


def default_of(field: dataclasses.Field[Any]) -> str:
    """Return the default of a setting or an option, as a reader writes it."""
    value = field.default
    if value is None or value is dataclasses.MISSING:
        return ""
    if value == ():
        return "required" if field.name == "nodes" else "`[]`"
    if isinstance(value, float):
        return f"{value:g} s"
    return f"`{value!r}`".replace("'", '"')


def texts_below(kind: type) -> dict[str, str]:
    """Return the text below each attribute of a class, by name."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)  # noqa: S101  (for mypy)
    return {
        ast.unparse(attribute.target): sentence(ast.literal_eval(text.value))
        for attribute, text in itertools.pairwise(body.body)
        if isinstance(attribute, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def fields_of(
    kind: type, prefix: str = "", texts: Mapping[str, str] | None = None
) -> str:
    """Return the table of a dataclass: names, defaults and meanings.

    The meanings are those of its docstring, unless they are given.
    """
    texts = texts or attributes_of(kind)
    return table(
        ("name", "default", "meaning"),
        [
            (f"`{prefix}{field.name}`", default_of(field), texts.get(field.name, ""))
            for field in dataclasses.fields(kind)
            if field.init
        ],
    )


# -- policies ------------------------------------------------------------------------


def policy_rows() -> Iterator[tuple[str, str, str]]:
    """Yield option, word, and what the word does, for each word of each option."""
    options = policies.ON_CONFLICT, policies.ON_LOCK_LOST, policies.ON_BACKEND_ERROR
    for option in options:
        for word, decision in option.words.items():
            yield option.name, word, summary(decision)


def words_of(option: str) -> str:
    """Return the table of an option's words."""
    return table(
        ("word", "what happens"),
        [(f'`"{word}"`', text) for name, word, text in policy_rows() if name == option],
    )


def situations() -> str:
    """Return what callables are given: a table for each situation."""
    parts = []
    for kind in (policies.Conflict, policies.Loss, policies.Outage):
        texts = {
            name: text
            for base in reversed(kind.__mro__)
            for name, text in attributes_of(base).items()
        }
        rows = [
            (f"`{field.name}`", texts.get(field.name, ""))
            for field in dataclasses.fields(kind)
        ]
        parts += [f"### {kind.__name__}", summary(kind), table(("field", ""), rows)]
    return "\n\n".join(parts)


# -- commands ------------------------------------------------------------------------


def commands() -> str:
    """Return a section for each command: usage, help, options."""
    group = redlock
    context = click.Context(group, info_name="celery -A proj redlock")
    return "\n\n".join(
        section_of(name, command)
        for name in group.list_commands(context)
        if (command := group.get_command(context, name)) is not None
    )


def section_of(name: str, command: click.Command) -> str:
    """Return the section of one command."""
    context = click.Context(command, info_name=f"celery -A proj redlock {name}")
    usage = " ".join([context.info_name or "", *command.collect_usage_pieces(context)])
    text = inspect.cleandoc(command.help or "").replace("\b\n", "").replace("``", "`")
    parts = [f"## {name}", f"```sh\n{usage}\n```", text]
    rows = [
        (", ".join(f"`{word}`" for word in option.opts), sentence(help_of(option)))
        for option in command.params
        if isinstance(option, click.Option) and option.opts[0] not in OF_MOST
    ]
    return "\n\n".join([*parts, *([table(("option", ""), rows)] if rows else [])])


def help_of(option: click.Option) -> str:
    """Return the help of an option, with its default."""
    shown = option.show_default and option.default not in (None, False)
    return f"{option.help or ''}{f' Default: {option.default}.' if shown else ''}"


# -- errors, signals, metrics --------------------------------------------------------


def error_tree() -> str:
    """Return the errors as a tree, with what each means."""
    kinds = [getattr(errors, name) for name in errors.__all__]
    lines: list[tuple[str, str]] = []

    def add(kind: type, before: str, joint: str) -> None:
        lines.append((f"{before}{joint}{kind.__name__}", summary(kind)))
        below = sorted(
            (other for other in kinds if other.__bases__[0] is kind),
            key=lambda other: other.__name__,
        )
        inside = before + {"": "", "├── ": "│   ", "└── ": "    "}[joint]
        for other in below:
            add(other, inside, "└── " if other is below[-1] else "├── ")

    add(errors.RedlockError, "", "")
    width = max(len(name) for name, _ in lines) + 2
    texts = [f"{name:{width}}{text.partition('. ')[0]}" for name, text in lines]
    plain = [text.rstrip(".").replace("`", "") for text in texts]
    return "\n".join(["```text", *plain, "```"])


def error_table() -> str:
    """Return what each error means and carries."""
    rows = []
    for name in errors.__all__:
        kind = getattr(errors, name)
        own = [f"`{field}`: {text}" for field, text in attributes_of(kind).items()]
        rows.append((f"`{name}`", summary(kind), "<br>".join(own)))
    return table(("error", "means", "attributes of its own"), rows)


def signal_table() -> str:
    """Return the signals and their arguments, from the table of their module."""
    texts = {
        row[0].strip("`"): sentence(row[1])
        for row in rows_of_tables(signals.__doc__ or "")
    }
    names = dict.fromkeys([*texts, *signals.__all__])  # in the order of the table
    return table(
        ("signal", "arguments"),
        [(f"`{n}`", texts.get(n, "")) for n in names if n in signals.__all__],
    )


def metric_table() -> str:
    """Return the metrics: names, kinds, labels, what they count."""
    app, source = Celery(set_as_current=False), CollectorRegistry()
    installed = metrics.install(app, registry=source)
    try:
        registries = source, installed.registry
        rows = sorted(row for registry in registries for row in metrics_in(registry))
    finally:
        installed.uninstall()
    return table(("metric", "kind", "labels", "meaning"), dict.fromkeys(rows))


def metrics_in(registry: CollectorRegistry) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each metric of a registry."""
    # prometheus_client has no public way to list the collectors of a registry.
    collectors: Any = registry._collector_to_names  # noqa: SLF001
    for collector in list(collectors):
        if isinstance(collector, CollectorRegistry):
            continue
        for family in collector.describe():
            ending = "_total" if family.type == "counter" else ""
            owner = collector if hasattr(collector, "_labelnames") else family
            labels = ", ".join(f"`{label}`" for label in owner._labelnames)  # noqa: SLF001
            text = sentence(family.documentation)
            yield f"`{family.name}{ending}`", family.type, labels, text


# -- pages ---------------------------------------------------------------------------


def house() -> str:
    """Return the picture of the package; see ``contributing/draw_house.py``."""
    return f"```mermaid\n{draw_house.picture()}\n```"


def policy_sample() -> str:
    """Return the smallest whole policy, which the tests add from its one file."""
    sample = Path(__file__).parents[2] / "tests" / "unit" / "policies" / "shout.py"
    return f"```python\n{sample.read_text('utf-8')}```"


BLOCKS = {
    "settings": lambda: fields_of(Settings, "redlock_"),
    "options": lambda: fields_of(LockOptions, texts=texts_below(LockArguments)),
    "on-conflict": lambda: words_of("on_conflict"),
    "on-lock-lost": lambda: words_of("on_lock_lost"),
    "on-backend-error": lambda: words_of("on_backend_error"),
    "situations": situations,
    "commands": commands,
    "error-tree": error_tree,
    "errors": error_table,
    "signals": signal_table,
    "metrics": metric_table,
    "house": house,
    "policy-sample": policy_sample,
}


def pages() -> list[Path]:
    """Return the pages that have generated blocks."""
    texts = {page: page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")}
    return sorted(page for page, text in texts.items() if MARKS.search(text))


def filled(text: str) -> str:
    """Return the text of a page with its blocks as they should be.

    Raises:
        KeyError: It has marks for a block that does not exist.
    """

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- generated: {name} -->\n{BLOCKS[name]()}\n<!-- end of {name} -->"

    return MARKS.sub(block, text)


def out_of_date() -> list[Path]:
    """Return the pages whose blocks differ from what the code says."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages()}
    return [page for page, text in texts.items() if filled(text) != text]


if __name__ == "__main__":
    for page in out_of_date():
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"Updated {page.relative_to(DOCS.parent)}.")  # noqa: T201
