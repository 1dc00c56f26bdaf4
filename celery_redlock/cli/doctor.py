"""``doctor``: what makes locks unsafe, slow or unavailable, and the remedy."""

from __future__ import annotations

import itertools
import re
import textwrap
from statistics import median
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.finding_codes import check_codes
from celery_redlock.cli.output.format import (
    Column,
    Row,
    fit,
    node_document,
    node_lines,
    state_cell,
    table,
)
from celery_redlock.cli.output.ink import painted
from celery_redlock.cli.output.session import (
    DONE,
    ERROR,
    USAGE,
    WARNING,
    Command,
    Failure,
    Interval,
    Session,
)
from celery_redlock.operations.acl import acl_rules
from celery_redlock.operations.doctor import (
    Case,
    Severity,
    address_of,
    counted,
    findings_of,
    folded,
    state_of_nodes,
    worst_of,
)
from celery_redlock.operations.inspect import (
    NodeReport,
    inspect_nodes,
    node_status,
)
from celery_redlock.operations.words import votes_text
from celery_redlock.stores.connection import store_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.operations.doctor import Finding

_MS = 1000
_PAUSE = 0.5  # seconds between two looks while it waits
_LONGEST_WAIT = 7 * 86400.0  # seconds: a quarantine is as long as redlock_max_ttl
_WIDTH = 88
_MOODS = {Severity.NOTE: "faint", Severity.WARNING: "warning", Severity.ERROR: "bad"}
_CODES = {Severity.NOTE: DONE, Severity.WARNING: WARNING, Severity.ERROR: ERROR}


@click.command(cls=Command, short_help="Find what makes locks unsafe or slow.")
@click.option("--acl", is_flag=True, help="Print ACL rules for a user of the nodes.")
@click.option(
    "--ignore",
    "ignored",
    metavar="CODE",
    multiple=True,
    help="Leave out findings with this code. Can be repeated.",
)
@click.option(
    "--wait",
    type=Interval(_LONGEST_WAIT),
    help="Only wait until a majority votes, for so many seconds at most.",
)
@click.option("--all-nodes", is_flag=True, help="With --wait: until all nodes vote.")
@click.pass_obj
def doctor(
    session: Session,
    *,
    acl: bool,
    ignored: Sequence[str],
    wait: float | None,
    all_nodes: bool,
) -> int:
    """Examine the nodes, the settings and the tasks.

    Exits with 0 if there is nothing worse than a note, 1 for a warning, 3 for an
    error. Watches the nodes' clocks for a second.

    With --wait it examines nothing. It asks for votes, as a worker does, until a
    majority votes, and exits with 0. When the time is over it exits with 3; with
    --all-nodes, with 1 if a majority votes. Use --all-nodes between the restarts of
    two nodes, and --wait alone before the start of workers.

    Findings that a project has decided about are left out: --ignore few-nodes, or for
    all commands and workers redlock_doctor_ignore = ["few-nodes"] in its settings.
    """
    check_codes("--ignore", ignored)
    if acl:
        lines, document = _acl(session.redlock)
        session.tell(lines, lambda: document)
        return DONE
    if wait is not None:
        return _wait(session, wait, all_nodes=all_nodes)
    if all_nodes:
        raise Failure("--all-nodes needs --wait SECONDS.", USAGE)
    app = session.loaded_app
    reports = inspect_nodes(session.redlock)
    case = Case(session.redlock, reports, app)
    found = [it for it in findings_of(case) if it.code not in ignored]
    worst = worst_of(found)
    summary = f"{counted(found)}." if found else "No findings."
    if left_out := sorted({*case.ignored, *ignored}):
        summary += f" Left out: {', '.join(left_out)}."
    session.tell(
        [*_nodes(reports), "", *_findings(found), summary],
        lambda: {
            "nodes": [node_document(report.status) for report in reports],
            "findings": [finding.as_dict() for finding in found],
            "ignored": left_out,
            "worst": worst.word if worst else None,
        },
    )
    return _CODES[worst] if worst else DONE


def _wait(session: Session, seconds: float, *, all_nodes: bool) -> int:
    """Wait until enough nodes vote, and return the exit code."""
    redlock, clock = session.redlock, SYSTEM_CLOCK
    total, quorum = len(redlock.labels), redlock.quorum
    wanted = total if all_nodes else quorum
    give_up_at = clock.monotonic() + seconds
    while True:
        nodes = node_status(redlock)
        votes, left = len(nodes.voting), give_up_at - clock.monotonic()
        if votes >= wanted or left <= 0:
            break
        clock.sleep(min(_PAUSE, left))
    fact = f"{votes_text(votes, total, wanted if votes < wanted else 0)}."
    lines = [*node_lines(nodes), "", fact[0].upper() + fact[1:]]
    if votes < wanted:
        case = Case(redlock, [NodeReport(it) for it in nodes])
        lines += [it.fact for it in findings_of(case, [state_of_nodes])]
    session.tell(
        lines,
        lambda: {
            "nodes": [*map(node_document, nodes)],
            "votes": votes,
            "needed": wanted,
        },
    )
    if votes >= wanted:
        return DONE
    return WARNING if votes >= quorum else ERROR


def _nodes(reports: Sequence[NodeReport]) -> list[str]:
    columns = (
        Column("NODE"),
        Column("STATE", cut="end"),
        Column("ANSWERS IN", right=True),
        Column("SERVER"),
    )
    rows: list[Row] = []
    for report in reports:
        latencies = report.clock.latencies
        answers = f"{median(latencies) * _MS:.2f} ms" if latencies else "–"
        info = report.status.info
        version = info.get("store") or info.get("redis_version", "–")
        rows.append([report.label, state_cell(report.status), answers, version])
    return table(columns, rows)


def _findings(found: Sequence[Finding]) -> list[str]:
    """Return the findings; those with the same remedy are put together."""
    lines: list[str] = []
    alike = itertools.groupby(found, lambda f: (f.severity, f.code, f.remedy))
    for (severity, code, remedy), findings in alike:
        lines.append(f"{painted(f'{severity.word:<9}', _MOODS[severity])}{code}")
        for finding in folded(findings):
            lines += _wrapped(finding.fact)
        lines += [painted(line, "faint") for line in _wrapped(remedy)]
        lines.append(painted(f"  {address_of(code)}", "faint"))
        lines.append("")
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        fit(_WIDTH),
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _acl(redlock: Redlock) -> tuple[list[str], dict[str, str]]:
    """Return the ACL rules of a user with all permissions that we need."""
    if redlock.addresses[0].is_store:
        url = redlock.addresses[0].url
        user = unquote(urlsplit(url.reveal()).username or "redlock")
        if not re.fullmatch(r"[a-z_][a-z0-9_]*", user):
            user = f'"{user}"'
        rules = store_of(url).grants.format(user=user)
        return ["A user with the needed permissions:", "", f"    {rules}"], {
            "rules": rules
        }
    timeout = redlock.timing.connect_timeout  # nothing is connected here
    select = any(node.connection(timeout).db for node in redlock.addresses)
    rules = acl_rules(redlock.keys.prefix, select=select)
    lines = [
        "A user with the needed permissions and no others, in redis-cli:",
        "",
        f"    ACL SETUSER redlock on >PASSWORD {rules}",
        "",
        "or in the ACL file, or redis.conf:",
        "",
        f"    user redlock on >PASSWORD {rules}",
        "",
        "Then use redis://redlock:PASSWORD@host:6379/0 in redlock_nodes.",
    ]
    return lines, {"rules": rules}
