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


def chosen(query: str) -> str:
    """Return a query as Grafana asks it, for all jobs and tasks."""
    query = re.sub(r"\$(job|task)", ".*", query)
    return query.replace("$__rate_interval", "1m")


def test_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    """The checker of Prometheus accepts them after Grafana has set the variables."""
    lines = ["groups:", "- name: dashboard", "  rules:"]
    for number, query in enumerate(queries()):
        if query.startswith("label_values"):
            continue
        lines += [f"  - record: q:{number}", f"    expr: {json.dumps(chosen(query))}"]
    (tmp_path / "dashboard.yml").write_text("\n".join(lines), encoding="utf-8")

    promtool("check", "rules", "dashboard.yml", folder=tmp_path)


def asked(
    query: str, series: dict[str, str], at: str, answer: dict[str, int], folder: Path
) -> None:
    """Assert that Prometheus answers a query so, at a time after these samples."""
    samples = [{"labels": f"{{{of}}}", "value": value} for of, value in answer.items()]
    test = {
        "interval": "15s",
        "input_series": [{"series": n, "values": v} for n, v in series.items()],
        "promql_expr_test": [
            {"expr": chosen(query), "eval_time": at, "exp_samples": samples}
        ],
    }
    # JSON is YAML.
    (folder / "query.yml").write_text(json.dumps({"tests": [test]}), encoding="utf-8")
    promtool("test", "rules", "query.yml", folder=folder)


JOB = "task='t'"
LOST = "task='t', decision='abort'"
BEAT = "election='e'"


@pytest.mark.parametrize(
    ("title", "name", "labels", "at", "answer"),
    [
        ("Losses in 24 h", "losses", LOST, "24h5m", {"": 2}),
        ("Late renewals in 24 h", "late_renewals", JOB, "24h5m", {"": 2}),
        ("Outages and losses", "losses", LOST, "8m15s", {LOST: 1}),
        ("Outages and losses", "outages", LOST, "8m15s", {LOST: 1}),
        ("Outages and losses", "losses", LOST, "15m", {LOST: 0}),
        ("Leadership", "elections", BEAT, "8m15s", {BEAT: 1}),
        ("Leadership", "terms_lost", BEAT, "8m15s", {BEAT: 1}),
    ],
)
def test_panels_count_what_a_series_begins_with(  # noqa: PLR0913, PLR0917
    tmp_path: Path, title: str, name: str, labels: str, at: str, answer: dict[str, int]
) -> None:
    """The first loss of a process makes its series: nothing increases in it.

    One process has counted before, and counts once more after six minutes. The series
    of the other one begins after eight.
    """
    metric = f"redlock_{name}_total"
    (panel,) = [one for one in DASHBOARD["panels"] if one["title"] == title]
    queries_ = [target["expr"] for target in panel["targets"]]
    (query,) = [one for one in queries_ if metric in one]
    series = {
        f"{metric}{{{labels}, instance='a'}}": "5x23 6x96",
        f"{metric}{{{labels}, instance='b'}}": "_x31 1x88",
    }

    asked(query, series, at, answer, tmp_path)


@pytest.mark.parametrize(("at", "answer"), [("8m15s", {JOB: 1}), ("15m", {})])
def test_note_marks_the_first_loss_of_a_process(
    tmp_path: Path, at: str, answer: dict[str, int]
) -> None:
    """The dashboard marks a loss once."""
    (note,) = DASHBOARD["annotations"]["list"]
    series = {f"redlock_losses_total{{{LOST}}}": "_x31 1x88"}

    asked(note["expr"], series, at, answer, tmp_path)
