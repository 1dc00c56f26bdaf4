"""Each block of the pages that shows the output of a command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.election import Elector
from celery_redlock.line.claims import Claims
from celery_redlock.locks.lease import Holder
from celery_redlock.locks.limits import wanted
from celery_redlock.operations.release import Operator, ask, release
from tests.cli.project import Project
from tests.docs.shown import Shown, assert_shown, commands_shown

pytestmark = pytest.mark.usefixtures("own_tasks")

TASK_IDS = (
    "0c9d11aa-77f0-4f1e-9a60-6d3c0a1f2b11",
    "0c9d21aa-77f0-4f1e-9a60-6d3c0a1f2b12",
)
NAMES = ("redlock-a:6379/0", "redlock-b:6379/0", "redlock-c:6379/0")


@pytest.fixture
def project(lend_nodes: Callable[..., DevNodes], tmp_path: Path) -> Iterator[Project]:
    """Give the project of the pages, on five nodes."""
    with Project(tmp_path, lend_nodes(5)) as project:
        yield project


def hold_invoices(project: Project) -> None:
    """Hold two locks. One of them is not on one of the nodes."""
    for number, task_id in enumerate(TASK_IDS, start=1):
        host = f"worker-{number}"
        project.hold(
            f"invoice:{number}", task_id=task_id, host=host, started=time.time() - 110
        )
    project.nodes[4].command("DEL", "redlock:lock:invoice:2")


def hold_permits(project: Project) -> None:
    """Hold the first and the third permit of three, and keep one start of ten."""
    facts = {"task": "proj.import", "task_id": TASK_IDS[0], "started": time.time()}
    key, at_once = wanted("imports", 3)
    _, both = wanted("imports", 3, rate="10/m")
    leases = [project.hold(key, limits=it, **facts) for it in (both, at_once, at_once)]
    (second,) = [lease for lease in leases if "imports##2" in lease.key.split("\n")]
    project.service.release(second)


def hold_one(project: Project) -> None:
    """Hold the lock of a call."""
    project.hold("invoice:42", task_id=TASK_IDS[0])


def release_one(project: Project) -> None:
    """Let an operator release the lock of a call."""
    hold_one(project)
    alice = Operator("alice", "celery redlock release", "stuck since noon", "web-1")
    asked = ask(project.service, "invoice:42")
    release(project.service, asked, asked.values, alice)


def claim_two(project: Project) -> None:
    """Let two jobs wait in the queue."""
    claims = Claims(project.service)
    for number, task_id in enumerate(TASK_IDS, start=1):
        holder = Holder("", task="proj.send_invoice", task_id=task_id)
        claims.take(f"invoice:{number}", holder, at_lock=False, at_cooldown=False)
        claims.keep(f"invoice:{number}", task_id, 3600.0)


def stop_the_second(project: Project) -> None:
    """Use three of the nodes, under the names of the page, and stop one."""
    nodes = [
        {"url": node.url, "name": name}
        for node, name in zip(project.nodes, NAMES, strict=False)
    ]
    project.change(redlock_nodes=nodes)
    for node in project.nodes[:3]:
        node.command("DEL", "redlock:meta")
    assert project.redlock("init", "--yes").code == 0
    project.kill(1)


def elect(project: Project) -> None:
    """Let one beat lead, and two stand by."""
    for _ in range(3):
        Elector(project.service, "beat:proj", name="celery beat").campaign()


SCENES: dict[tuple[str, ...], Callable[[Project], None]] = {
    ("ls", "invoice:*"): hold_invoices,
    ("ls", "imports*"): hold_permits,
    ("release", "invoice:42"): hold_one,
    ("show", "invoice:42"): release_one,
    ("release", "--claims"): claim_two,
    ("explain", "proj.send_invoice", "--args", "[42]"): hold_one,
    ("doctor",): stop_the_second,
    ("leader",): elect,
}


BLOCKS = [block for block in commands_shown() if block.command[0] != "dev"]


@pytest.mark.parametrize(
    "block", BLOCKS, ids=lambda block: f"{block.page}-{'-'.join(block.command)}"
)
def test_command_prints_what_the_page_shows(project: Project, block: Shown) -> None:
    """Line by line; what differs from run to run is left out."""
    SCENES[block.command](project)

    run = project.redlock(*block.command, typed="y\n")

    assert_shown(block.output, run.out)


def test_nodes_to_try_things_out_print_what_the_page_shows(project: Project) -> None:
    """Until it says how to stop them."""
    (block,) = [block for block in commands_shown() if block.command[0] == "dev"]
    printed = ""

    with project.start(*block.command) as dev:
        while "Ctrl-C" not in printed:
            line = dev.line()
            assert line, printed
            printed += line
        dev.interrupt()

    assert_shown(block.output, printed)


def test_difference_is_found() -> None:
    """Another word, a line too many and a missing line are differences."""
    shown = "KEY  LEFT\nk    28 s\n…\nend of 0c9d…"
    assert_shown(shown, "KEY   LEFT\nk     1 m 02 s\nmore\nand more\nend of 77aa…")

    for other in ("KEY  AGE\nk  28 s\nend of 77aa…", "KEY  LEFT\nk  28 s"):
        with pytest.raises(AssertionError):
            assert_shown(shown, other)
