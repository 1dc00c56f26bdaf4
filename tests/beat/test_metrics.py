"""The metrics of leadership, scraped from real beats and a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.devnodes.processes import free_port
from tests.beat.support import KEY, LONG_TTL, until
from tests.harness.metrics import PORT, Scraped

if TYPE_CHECKING:
    from tests.beat.support import Beats

IMPORTS = ["tests.beat.project.metered"]


def test_leadership_is_scraped_from_each_beat(beats: Beats) -> None:
    """Both report one leader and one standby. Only the leader counts a term."""
    scraped = []
    for _ in range(2):
        port = free_port()
        beats.use(**{PORT: str(port)})
        beats.start(imports=IMPORTS, redlock_beat_ttl=LONG_TTL)
        scraped.append(Scraped(port))

    for each in scraped:
        each.until_at_least(1, "redlock_leaders", election=KEY)
        each.until_at_least(1, "redlock_standbys", election=KEY)
    terms = [each.value("redlock_elections_total", election=KEY) for each in scraped]
    assert sorted(terms) == [0, 1]


def test_absence_of_a_leader_is_scraped_from_a_worker(beats: Beats) -> None:
    """A worker that has once seen a leader reports that there is none."""
    port = free_port()
    beats.use(**{PORT: str(port)})
    beats.start_worker(imports=IMPORTS)
    scraped = Scraped(port)
    until(scraped.is_open)
    assert not scraped.has("redlock_leaders")

    beats.start()
    scraped.until_at_least(1, "redlock_leaders", election=KEY)
    beats.until_led().kill("SIGTERM")

    until(lambda: not scraped.value("redlock_leaders", election=KEY))
    assert scraped.has("redlock_leaders")
