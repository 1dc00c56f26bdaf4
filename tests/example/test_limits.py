"""The page of the limits, by clicks in a browser.

Permits that a test holds itself are in use for as long as it looks. The tests together
start fewer jobs than may start in a minute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from celery_redlock import Redlock, lock
from tests.example.support import Browser, Site

RUNS_WITHIN = 90.0  # seconds until jobs have run, also if starts must wait for a minute
HOME, RIGHT = "\ue011", "\ue014"  # keys of the keyboard, as WebDriver names them


@pytest.fixture
def limits(browser: Browser) -> Browser:
    """Give the page of the limits, filled."""
    browser.open("/limits/")
    browser.find("#tenants tbody tr")
    return browser


@contextmanager
def in_use(site: Site, count: int, keys: Mapping[str, int]) -> Iterator[None]:
    """Hold so many permits of each of these keys."""
    with ExitStack() as stack:
        for _ in range(count):  # each of them is a client of its own
            redlock = Redlock(site.nodes, ttl=12, max_ttl=12, node_timeout=2)
            stack.callback(redlock.close)
            stack.enter_context(lock(redlock, keys, wait=30))
        yield


def used(browser: Browser, tenant: int) -> str:
    """Return how many permits a tenant has in use, as the page shows it."""
    return browser.facts("#tenants tbody tr")[tenant - 1]["used"]


def ended(browser: Browser, tenant: str) -> int:
    """Return how many jobs of a tenant have run."""
    rows = browser.facts("#runs tbody tr")
    return sum(row["key"] == tenant and row["state"] == "done" for row in rows)


def test_job_waits_until_its_tenant_has_a_free_permit(
    limits: Browser, site: Site
) -> None:
    """The page shows all permits of the tenant in use, and then the run."""
    with in_use(site, 3, {"tenant:2": 3}):
        limits.wait(lambda: used(limits, 2) == "3", "all permits are in use")
        assert "Birch Bikes ■■■ 3 of 3" in limits.text("#tenants")
        limits.choose("#tenant", "2")
        limits.driver.execute_script("document.querySelector('#publish-ten').value = 1")
        limits.click("#publish-ten")
        limits.wait(lambda: limits.count("#timeline .retried"), "it is republished")
        assert ended(limits, "Birch Bikes") == 0

    limits.wait(lambda: ended(limits, "Birch Bikes") == 1, "it has run", RUNS_WITHIN)


def test_jobs_of_one_tenant_never_run_more_than_three_at_once(limits: Browser) -> None:
    """All of them run in the end, and the journal counts those that ran at once."""
    limits.choose("#tenant", "3")

    limits.click("#publish-ten")

    limits.sees("Published 10 jobs for Cedar Coffee, with a limit of 8", "#said")
    limits.wait(lambda: ended(limits, "Cedar Coffee") == 10, "all ran", RUNS_WITHIN)
    assert "ran at once." in limits.text("#at-once")
    assert limits.count("#timeline .bar.clash") == 0


def test_slider_shows_permits_beside_the_limit(limits: Browser, site: Site) -> None:
    """Permits above a lowered limit stay in use until those who have them end."""
    with in_use(site, 8, {"tenants": 8}):
        limits.wait(lambda: limits.text("#in-all-words") == "8 of 8", "all are in use")
        assert "8 permits are in use" in limits.text("#verdict")

        limits.type("#limit", HOME + 2 * RIGHT)

        assert limits.text("#limit-value") == "3"
        assert limits.text("#in-all-words") == (
            "8 of 3: jobs that were published before keep their limit"
        )
        assert limits.facts("#in-all") == [{"used": "8", "limit": "3"}]
        assert limits.count("#in-all .used.beyond") == 5
    limits.wait(lambda: limits.text("#in-all-words") == "0 of 3", "they are free")


def test_runs_beyond_a_limit_are_shown_with_red_frames(
    limits: Browser, site: Site
) -> None:
    """The journal counts bodies, and knows nothing of permits."""
    spans = [(20.0, 10.0), (19.0, 10.0), (18.0, 10.0), (17.0, 12.0), (9.0, 8.0)]
    with site.forged_runs("tenant:7##2\ntenants#5", spans, task="limits.tasks.fetch_8"):
        limits.sees("1 run began when as many ran as may!", "#at-once")
        limits.wait(lambda: limits.count("#timeline .bar.clash") == 1, "a red frame")


def test_everything_on_the_page_of_limits_has_a_name(limits: Browser) -> None:
    """Controls have names, and tables have captions."""
    controls = limits.driver.find_elements("css selector", "button, select, input, a")
    names = [one.accessible_name for one in controls if one.is_displayed()]

    assert all(names)
    assert "At most in all" in names
    assert limits.count("table") == limits.count("table > caption") == 2
