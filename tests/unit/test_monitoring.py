"""The pages about monitoring, and the data beside them, name what exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import celery
import pytest
from prometheus_client import CollectorRegistry

from celery_redlock.metrics.collector import StateCollector
from celery_redlock.metrics.instruments import Instruments
from tests.harness.source import log_events
from tests.nodes.support import run_python

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "monitoring.md").read_text(encoding="utf-8")
EVENTS = (DOCS / "reference" / "log-events.md").read_text(encoding="utf-8")
FOLDER = DOCS / "monitoring"
RULES = (FOLDER / "alerts.yml").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))


# -- names -------------------------------------------------------------------------


@cache
def metrics() -> dict[str, set[str]]:
    """Return the series of each metric, by the name of the metric in the docs."""
    registry = CollectorRegistry()
    Instruments(registry)
    registry.register(StateCollector(celery.Celery(set_as_current=False)))
    state = StateCollector(None).describe()
    found = {}
    for family in [*registry.collect(), *state]:
        endings = {
            "counter": ("_total",),
            "histogram": ("_bucket", "_sum", "_count"),
            "gauge": ("",),
        }[family.type]
        counted = family.name + ("_total" if family.type == "counter" else "")
        found[counted] = {family.name + ending for ending in endings}
    return found


def series() -> set[str]:
    """Return the names of all series."""
    return set().union(*metrics().values())


def named_in(expression: str) -> set[str]:
    """Return the series that a query names."""
    return set(re.findall(r"\bredlock_\w+", expression))


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the table under a line that begins like this."""
    table = page.split(f"\n{heading}", 1)[1].split("\n\n", 1)[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def words(cell: str) -> set[str]:
    """Return what is set as code in a cell."""
    return set(re.findall(r"`([^`]+)`", cell))


# -- the pages ---------------------------------------------------------------------


def test_every_alert_is_documented() -> None:
    """The table has each alert, and no other."""
    documented = [name for row in rows(PAGE, "| alert |") for name in words(row[0])]

    assert documented == re.findall(r"- alert: (\w+)", RULES)


def test_every_event_of_the_log_is_documented_with_its_fields() -> None:
    """The reference has each event of the code, and no other."""
    documented = {
        event: words(row[3])
        for row in rows(EVENTS, "| `redlock_event` |")
        for event in words(row[0])
    }

    assert documented == log_events()
    assert len(documented) > 20


BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLE = json.loads(PAGE.split("```json\n")[1].split("```")[0])


def test_python_of_the_page_runs() -> None:
    """The blocks run one after the other as one program."""
    assert len(BLOCKS) > 3

    run_python("import os\n" + "\n".join(BLOCKS))


def test_structlog_shows_the_fields_as_they_are() -> None:
    """The example prints the line that the page shows, except for the time."""
    program = [
        BLOCKS[-1],
        "log_as_json()",
        "import sys; logging.getLogger().handlers[0].setStream(sys.stdout)",
        "from celery_redlock.wire.node_log import NodeLog",
        "NodeLog('redis-b:6379/0').late(1.07)",
    ]

    (line,) = run_python("\n".join(program))

    shown = json.loads(line)
    assert {**shown, "timestamp": ""} == {**EXAMPLE, "timestamp": ""}


# -- the dashboard -----------------------------------------------------------------


def queries() -> list[str]:
    """Return all queries of the dashboard."""
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    targets = [target["expr"] for panel in panels for target in panel["targets"]]
    notes = [note["expr"] for note in DASHBOARD["annotations"]["list"]]
    choices = DASHBOARD["templating"]["list"]
    return targets + notes + [c["definition"] for c in choices if "definition" in c]


def test_dashboard_shows_each_metric() -> None:
    """Each query names series that exist, and each metric has a panel."""
    assert all(named_in(query) for query in queries())
    named = set().union(*map(named_in, queries()))

    assert named <= series()
    assert [name for name, own in metrics().items() if not own & named] == []


def test_dashboard_can_be_imported_by_grafana() -> None:
    """Panels have unique ids and do not overlap; the data source is a variable."""
    panels = DASHBOARD["panels"]
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    sources = re.findall(r'"uid": "([^"]*)"', json.dumps(panels))

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert set(sources) == {"${datasource}"}
    assert {c["name"] for c in DASHBOARD["templating"]["list"]} >= {"datasource"}


# -- the alerts --------------------------------------------------------------------


def test_alerts_name_series_that_exist() -> None:
    """A rule about another series would never fire."""
    asked = named_in(re.sub(r"summary:.*|description:.*|#.*", "", RULES))

    assert asked <= series()
    assert asked


def promtool(*words: str, folder: Path) -> None:
    """Run promtool, of Debian's package ``prometheus``, without an error."""
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("promtool is not on PATH; it checks the rules (prometheus)")
    done = subprocess.run(  # noqa: S603  (a checker of our own files)
        [path, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_alert_rules_are_valid() -> None:
    """The checker of Prometheus accepts them."""
    promtool("check", "rules", "alerts.yml", folder=FOLDER)


def test_alert_rules_fire_when_they_should() -> None:
    """Each rule has tests, which users run when they change a threshold."""
    tests = (FOLDER / "alerts.test.yml").read_text(encoding="utf-8")

    assert set(re.findall(r"alertname: (\w+)", tests)) == set(
        re.findall(r"- alert: (\w+)", RULES)
    )
    promtool("test", "rules", "alerts.test.yml", folder=FOLDER)


def test_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    """The checker of Prometheus accepts them after Grafana has set the variables."""
    lines = ["groups:", "- name: dashboard", "  rules:"]
    for number, query in enumerate(queries()):
        if query.startswith("label_values"):
            continue
        chosen = re.sub(r"\$(job|task)", ".*", query)
        chosen = chosen.replace("$__rate_interval", "1m")
        lines += [f"  - record: q:{number}", f"    expr: {json.dumps(chosen)}"]
    (tmp_path / "dashboard.yml").write_text("\n".join(lines), encoding="utf-8")

    promtool("check", "rules", "dashboard.yml", folder=tmp_path)
