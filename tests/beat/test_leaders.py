"""Real beats, of which one sends: they are killed, stopped, frozen and cut off.

Commands and metrics show which one leads.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest

from celery_redlock.devnodes.processes import free_port
from tests.beat.support import KEY, LONG_TTL, Beats, MakeBeats, often, until
from tests.harness.metrics import PORT, Scraped
from tests.harness.store_nodes import STORE

IMPORTS = ["tests.beat.project.metered"]
NO_LEADER, UNKNOWN = 1, 3  # exit codes of `redlock leader`


def assert_no_slot_was_sent_twice(beats: Beats, *, but: Collection[str] = ()) -> None:
    """Assert that the names of all messages differ, but for those of these slots."""
    counts = Counter(sent.slot for sent in beats.sent())
    assert {slot for slot, count in counts.items() if count > 1} <= set(but)


def test_killed_leader_is_replaced(beats: Beats) -> None:
    """After SIGKILL, the standby continues with the next slot, within a ttl."""
    first = beats.start()
    beats.until_sent(2, by=first)
    second = beats.start_standby()

    killed = beats.kill_between_slots(first)

    beats.until_sent(3, by=second)
    assert_no_slot_was_sent_twice(beats)
    last, following = beats.sent_by(first)[-1], beats.sent_by(second)[0]
    assert last.due < following.due <= killed + timedelta(seconds=0.5)


@pytest.mark.long
def test_stopped_leader_is_replaced_at_once(
    project: MakeBeats,
) -> None:
    """After SIGTERM, the standby does not wait for the ttl, which is a minute here."""
    beats = project(often(), redlock_beat_ttl=60)
    first = beats.start()
    beats.until_sent(1, by=first)
    second = beats.start_standby()

    first.kill("SIGTERM")

    assert "Resigned" in first.logs()
    beats.until_sent(2, by=second, seconds=40)


@pytest.mark.long
def test_majority_of_nodes_away_stops_all_sending(beats: Beats) -> None:
    """Each beat logs this once. When the nodes are back, one beat continues."""
    leader = beats.start_three()
    with beats.nodes.majority_paused():
        for beat in beats.all:
            beat.until_logged("No leader of")
        assert leader.count("is lost after") == 1
        before = beats.sent()
        looks = [beat.count("answers late") for beat in beats.all]
        shown = beats.command("redlock", "leader")
        assert shown.returncode == UNKNOWN
        assert "It cannot be told which beat leads" in shown.stdout
        assert beats.sent() == before
        assert all(looks)
        said = [beat.count("No leader of") for beat in beats.all]

    beats.until_sent(2)
    assert said == [1] * 3
    # The leader may have sent one slot more than it could note. Redis nodes that were
    # frozen read the note from their sockets; a transaction of a store ends without it,
    # and another leader sends that slot again.
    assert_no_slot_was_sent_twice(beats, but=[before[-1].slot] if STORE else [])


@pytest.mark.long
def test_beat_that_is_stopped_leaves_no_lock(
    project: MakeBeats,
) -> None:
    """SIGTERM comes in the middle of ticks and of requests to the nodes."""
    beats = project(often(0.001), redlock_beat_ttl=60)
    for _ in range(4):
        beat = beats.start()
        beats.until_sent(200, by=beat, seconds=60)

        beat.kill("SIGTERM")

        assert "Traceback" not in beat.logs()
        beats.nodes.until_free("beat:project", seconds=20)


def leader_facts(beats: Beats) -> dict[str, Any]:
    """Return what ``redlock leader --json`` prints; its exit code tells the same."""
    done = beats.command("redlock", "leader", "--json")
    facts: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if facts["leader"] else NO_LEADER)
    return facts


@pytest.mark.long
def test_leader_command_shows_the_leader_and_the_standbys(beats: Beats) -> None:
    """It prints text or JSON, and its exit code tells whether there is a leader."""
    none = beats.command("redlock", "leader")
    assert none.returncode == NO_LEADER
    assert "beat:project has no leader: no beat sends scheduled tasks." in none.stdout
    assert leader_facts(beats)["leader"] is None
    before = time.time()
    first = beats.start(redlock_beat_ttl=LONG_TTL)
    beats.until_led()
    second = beats.start_standby(redlock_beat_ttl=LONG_TTL)

    shown = beats.command("redlock", "leader")
    facts = leader_facts(beats)

    host, nodes = socket.gethostname(), len(beats.nodes.urls)
    assert shown.returncode == 0
    assert f"led by celery beat on {host} (pid {first.pid})" in shown.stdout
    assert f"Standing by: celery beat on {host} (pid {second.pid})" in shown.stdout
    assert f"{nodes} of {nodes} node" in shown.stdout
    assert facts["key"] == "beat:project"
    assert (facts["leader"]["host"], facts["leader"]["pid"]) == (host, first.pid)
    assert (facts["leader"]["votes"], facts["unseen"]) == (nodes, {})
    assert [standby["pid"] for standby in facts["standbys"]] == [second.pid]
    assert before < facts["leader"]["started"] < facts["standbys"][0]["started"]
    assert 0 < facts["leader"]["ends_in"] <= LONG_TTL

    second.kill("SIGTERM")
    beats.until_no_standby()
    assert leader_facts(beats)["standbys"] == []


@pytest.mark.long
def test_setting_that_is_wrong_ends_beat_in_one_line(beats: Beats) -> None:
    """The line names the setting, and there is no traceback."""
    settings = {"redlock_beat_scheduler": "no.such:Scheduler"}

    ended = beats.command("beat", "-S", "redlock", **settings)

    assert ended.returncode == 1
    assert "celery-redlock: redlock_beat_scheduler is 'no.such" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert os.sep not in ended.stderr.partition("celery-redlock: ")[2]


# -- Metrics -----------------------------------------------------------------------


def scrape_next(beats: Beats) -> Scraped:
    """Return the metrics that the next process serves."""
    port = free_port()
    beats.use(**{PORT: str(port)})
    return Scraped(port)


@pytest.mark.long
def test_leadership_is_scraped_from_each_beat(beats: Beats) -> None:
    """Both report one leader and one standby. Only the leader counts a term."""
    scraped = []
    for _ in range(2):
        scraped.append(scrape_next(beats))
        beats.start(imports=IMPORTS, redlock_beat_ttl=LONG_TTL)

    for each in scraped:
        each.until_at_least(1, "redlock_leaders", election=KEY)
        each.until_at_least(1, "redlock_standbys", election=KEY)
    terms = [each.value("redlock_elections_total", election=KEY) for each in scraped]
    assert sorted(terms) == [0, 1]


@pytest.mark.long
def test_absence_of_a_leader_is_scraped_from_a_worker(beats: Beats) -> None:
    """A worker that has once seen a leader reports that there is none."""
    scraped = scrape_next(beats)
    beats.start_worker(imports=IMPORTS)
    until(scraped.is_open)
    assert not scraped.has("redlock_leaders")

    beats.start()
    scraped.until_at_least(1, "redlock_leaders", election=KEY)
    beats.until_led().kill("SIGTERM")

    until(lambda: not scraped.value("redlock_leaders", election=KEY))
    assert scraped.has("redlock_leaders")
