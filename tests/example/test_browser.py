"""The example site, by clicks in a browser.

Each test has customers of its own, so the order of the tests does not matter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from tests.example.support import PATIENCE, Browser, Site

FREE_WITHIN = 6.0  # seconds until the lock of a killed process is free
PAGE_LAG = 5.0  # seconds until the page shows a change
VOTES_WITHIN = 45.0  # seconds until restarted nodes vote

ADMIN = "/admin/celery_redlock/heldlock/"


@pytest.fixture
def live(browser: Browser) -> Browser:
    """Give the live page, filled."""
    browser.open("/live/")
    browser.find("#nodes tbody tr")
    return browser


def states(browser: Browser, key: str) -> Counter[str]:
    """Return the number of calls of a key in each state, as the page shows them."""
    rows = browser.facts("#runs tbody tr")
    return Counter(row["state"] for row in rows if row["key"] == key)


def holder(browser: Browser, key: str) -> tuple[str, str] | None:
    """Return process and fence of a key's holder, as the page shows them."""
    rows = browser.facts("#locks tbody tr")
    return next(((r["pid"], r["fence"]) for r in rows if r["key"] == key), None)


def click_and_hold(browser: Browser, customer: int) -> tuple[str, str]:
    """Run a customer's report and return its holder, once the page shows it."""
    browser.choose("#customer", str(customer))
    browser.click("#run-once")
    key = f"report:{customer}"
    browser.wait(lambda: holder(browser, key), f"{key} is held")
    found = holder(browser, key)
    assert found
    return found


# -- The live page -------------------------------------------------------------------


def test_ten_clicks_at_once_give_one_run_and_nine_skips(live: Browser) -> None:
    """Ten requests at once: one body runs, and nine rows name the holder.

    On a busy machine a call may find the votes split, or too few answers. Then it is
    republished, and skipped later.
    """
    live.choose("#customer", "1")

    live.click("#run-ten")

    live.wait(lambda: states(live, "report:1")["skipped"] >= 9, "nine skips")
    live.wait(lambda: states(live, "report:1")["done"] == 1, "the run is done")
    ended = states(live, "report:1")
    del ended["retried"]
    assert ended == {"done": 1, "skipped": 9}
    assert live.text("#runs").count("held by process") >= 9
    assert live.text("#overlaps") == "No overlaps."


def test_killed_holders_lock_is_free_within_six_seconds(live: Browser) -> None:
    """Another process gets the lock before the end of the ttl, and no job is lost."""
    pid, fence = click_and_hold(live, 2)

    live.click("#kill")

    live.wait(
        lambda: (pid, fence) != holder(live, "report:2"),
        "the lock of the killed process is free",
        FREE_WITHIN + PAGE_LAG,
    )
    live.wait(lambda: states(live, "report:2")["killed"] == 1, "the kill is shown")
    live.wait(lambda: states(live, "report:2")["done"] == 1, "it has run once more")
    assert live.text("#overlaps") == "No overlaps."


def test_renewals_are_shown_when_a_node_stores_a_greater_fence(
    live: Browser, site: Site
) -> None:
    """A node that granted late may store a greater fence than that of the lease."""
    live.wait(lambda: holder(live, "import-orders"), "an import runs", 40.0)
    name = "redlock:lock:import-orders"
    with closing(
        redis.Redis.from_url(site.nodes[0], protocol=2, decode_responses=True)
    ) as node:
        greater = ""

        def is_shown() -> bool:
            nonlocal greater
            value = node.get(name)
            if isinstance(value, str) and f"\n{greater}\n" not in value:
                token, fence, rest = value.split("\n", 2)  # another import, since then
                greater = str(int(fence) + 1000)
                node.set(name, f"{token}\n{greater}\n{rest}", keepttl=True, xx=True)
            row = f"#locks tr[data-fence='{greater}']"
            return live.text(f"{row} td:nth-of-type(4)").isdigit()

        live.wait(is_shown, "the greater fence is shown")


def press(browser: Browser, word: str, node: int) -> None:
    """Stop or start a node, and wait until its button says that it is done."""
    button = f"#nodes tbody tr:nth-child({node}) button"
    browser.wait(lambda: browser.text(button) == word, f"node {node} has {word}")
    browser.click(button)
    browser.wait(lambda: browser.text(button) != word, f"{word} of node {node} is done")


def test_two_stopped_nodes_change_nothing_and_three_stop_grants(live: Browser) -> None:
    """The page shows the number of votes; calls without a lock wait, none is lost.

    How many permits are in use is unknown then, and the page of the limits says so.
    """
    press(live, "Stop", 1)
    press(live, "Stop", 2)
    said = "Locks are granted: 3 of 5 nodes vote, 3 are enough."
    live.wait(lambda: live.text("#verdict") == said, "three votes")
    click_and_hold(live, 3)
    live.wait(lambda: states(live, "report:3")["done"] == 1, "it is done")

    press(live, "Stop", 3)
    said = "No lock can be granted: 2 of 5 nodes vote, 3 are needed."
    live.wait(lambda: live.text("#verdict") == said, "two votes")
    live.sees("Too few nodes can tell which locks are held.", "#no-locks")
    live.choose("#customer", "4")
    live.click("#run-once")
    live.wait(lambda: states(live, "report:4")["retried"] >= 1, "it is republished")
    assert set(states(live, "report:4")) == {"retried"}
    live.open("/limits/")
    live.sees("how many permits are in use is unknown", "#verdict")
    assert live.text("#in-all-words") == live.text("#starts-words") == "unknown"
    assert {row["used"] for row in live.facts("#tenants tbody tr")} == {"unknown"}
    live.open("/live/")

    for node in (1, 2, 3):
        press(live, "Start", node)
    live.wait(lambda: "restarted empty" in live.text("#nodes"), "a quarantine")
    live.wait(
        lambda: live.text("#verdict") == "All 5 nodes vote.", "all vote", VOTES_WITHIN
    )
    live.wait(
        lambda: states(live, "report:4")["done"] == 1,
        "the republished call has run",
        VOTES_WITHIN,
    )
    assert live.text("#overlaps") == "No overlaps."


@pytest.fixture
def forged(site: Site) -> Iterator[None]:
    """Add two overlapping runs of one key to the journal."""
    with site.forged_runs("forged", [(20, 10), (12, 5)]):
        yield


BOXES = """
    return [...document.querySelectorAll("#timeline text")].map((text) => {
      const box = text.getBoundingClientRect();
      return [text.textContent, box.left, box.right, box.top, box.bottom];
    });
"""


LINES_OF_KEYS = """
    return [...document.querySelectorAll("#locks tbody th")].map((cell) => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        return new Set([...range.getClientRects()].map((box) => box.top)).size;
    });
"""


def test_keys_of_locks_are_whole_on_a_telephone(live: Browser) -> None:
    """No key is broken in the middle of a word, and the page is no wider."""
    size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    live.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        live.wait(lambda: "beat:reports" in live.text("#locks"), "the leader's lock")
        lines = live.driver.execute_script(LINES_OF_KEYS)
        width = live.driver.execute_script("return document.body.scrollWidth")
    finally:
        live.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    assert set(lines) == {1}
    assert width <= 390


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_labels_of_the_timeline_do_not_overlap(
    forged: None, live: Browser, width: int
) -> None:
    """They stand side by side and inside the page, on a telephone as on a desk."""
    live.wait(lambda: live.count("#timeline .bar.clash") == 2, "two framed bars")
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    live.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        drawn = "return document.querySelector('#timeline svg').clientWidth"
        live.wait(lambda: live.driver.execute_script(drawn) < width, "it is redrawn")
        boxes = live.driver.execute_script(BOXES)
    finally:
        live.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    # How many labels the axis has depends on the width of the page without its borders
    # and scroll bar.
    assert {"30 s ago", "20 s ago"} & {text for text, *_ in boxes}
    assert {"now", "forged"} <= {text for text, *_ in boxes}
    for index, (_, left, right, top, bottom) in enumerate(boxes):
        assert 0 <= left < right <= width
        for _, other_left, other_right, other_top, other_bottom in boxes[:index]:
            apart_x = right <= other_left or other_right <= left
            apart_y = bottom <= other_top or other_bottom <= top
            assert apart_x or apart_y


def test_overlap_is_shown_with_red_frames(forged: None, live: Browser) -> None:
    """Runs that overlap are counted, framed, and drawn below each other."""
    live.wait(lambda: live.count("#timeline .bar.clash") == 2, "two framed bars")

    heights = live.attributes("#timeline .bar.clash", "y")
    assert len(set(heights)) == 2
    assert (
        "forged: 2 done, overlapping"
        in live.attributes("#timeline svg", "aria-label")[0]
    )
    live.sees("1 overlap: two runs of a key at the same time!", "#overlaps")


def test_focus_stays_where_it_is_while_the_page_changes(live: Browser) -> None:
    """An update of the page does not move the keyboard focus."""
    button = live.find("#nodes tbody tr:nth-child(4) button")
    live.driver.execute_script("arguments[0].focus()", button)
    name, age = button.accessible_name, live.text("#locks")

    live.wait(lambda: live.text("#locks") != age, "the page has changed")

    assert live.driver.switch_to.active_element == button
    assert name.startswith("Stop node 127.0.0.1:")


def test_everything_has_a_name_that_can_be_read_out(live: Browser) -> None:
    """Controls have names, tables have captions, and the page has a language."""
    controls = live.driver.find_elements("css selector", "button, select, a")

    assert controls
    assert all(control.accessible_name for control in controls)
    assert live.count("table") == live.count("table > caption") == 3
    assert live.count("html[lang=en] main h1") == 1


# -- The other pages -----------------------------------------------------------------


def test_customer_page_names_the_task_that_builds_the_report(browser: Browser) -> None:
    """The page names the holder before the second call is skipped."""
    browser.open("/customers/5/")
    browser.click("main form button")
    browser.wait(lambda: browser.count("#holder"), "it is being built")

    browser.click("main form button")

    said = browser.sees("The report is being built by reports.tasks.build_report[")
    assert "Your call will be skipped." in said
    browser.wait(lambda: browser.count("td .skipped") == 1, "the skip is shown")
    assert "held by process" in browser.text()


COMMAND = """
from django.core.management import call_command
from reports.management.commands import build_report
print("ready", flush=True)
input()
call_command("build_report", "6")
"""


def test_command_takes_the_lock_of_the_task(live: Browser, site: Site) -> None:
    """``manage.py build_report`` stops while a worker builds the same report.

    On a busy machine Django starts for longer than a report takes, so it starts first.
    """
    with site.manage("shell", "-c", COMMAND) as command:
        assert command.stdout
        assert "ready\n" in command.stdout
        pid, _ = click_and_hold(live, 6)
        _, told = command.communicate("\n", timeout=PATIENCE)

    assert command.returncode == 1
    assert "The report is being built by reports.tasks.build_report[" in told
    assert f"(pid {pid}) since" in told


def test_invoice_gets_a_number_and_a_late_writer_is_refused(browser: Browser) -> None:
    """A worker assigns the number, and an older fence cannot change the series."""
    browser.open("/invoices/")
    make_invoice(browser, "main form:nth-of-type(1) button")
    browser.wait(lambda: reloaded(browser, "/invoices/", "-0001"), "a number")

    browser.click("main form:nth-of-type(3) button")

    browser.sees("The row refused the late write. The write of Series")


def test_number_of_a_worker_that_is_killed_after_the_commit_is_used_once(
    browser: Browser,
) -> None:
    """The message comes again, and the next copy is given the recorded number."""
    browser.open("/invoices/")
    before = numbers(browser)

    make_invoice(browser, "main form:nth-of-type(2) button")
    done = "killed after its commit; the next copy was given this number"
    browser.wait(lambda: reloaded(browser, "/invoices/", done), "the second copy")
    make_invoice(browser, "main form:nth-of-type(1) button")
    browser.wait(lambda: len(numbers(browser)) == len(before) + 2, "the next invoice")

    found = numbers(browser)
    assert found == list(range(1, len(found) + 1))
    assert browser.text("main section:nth-of-type(2) tbody td") == str(len(found))


def make_invoice(browser: Browser, button: str) -> None:
    """Click on a button, and wait for the reply: to open a page would cancel it."""
    browser.click(button)
    browser.sees("was made.")


def numbers(browser: Browser) -> list[int]:
    """Return the numbers of the invoices on the page, in order."""
    browser.open("/invoices/")
    cells = browser.text("main section:nth-of-type(1) tbody")
    return sorted(map(int, re.findall(r"\b20\d\d-(\d{4})\b", cells)))


def test_import_is_sent_by_one_beat_and_skips_what_overlaps(browser: Browser) -> None:
    """One beat is the leader, one a standby; every second import is skipped."""
    browser.wait(lambda: reloaded(browser, "/import/", "skipped held by"), "a skip")

    text = browser.text()
    assert text.count("Standby process") == 1
    assert "Leader process" in text


def reloaded(browser: Browser, path: str, text: str) -> bool:
    """Load a page and tell whether it contains this text."""
    browser.open(path)
    return text in browser.text("main")


# -- The admin -----------------------------------------------------------------------


def log_in(browser: Browser, name: str) -> None:
    """Log in to the admin; each password equals the name."""
    browser.open(f"/admin/login/?next={ADMIN}")
    browser.type("#id_username", name)
    browser.type("#id_password", name)
    browser.click("[type=submit]")
    browser.find("#result_list")


def test_support_sees_locks_and_may_not_release_them(live: Browser) -> None:
    """Staff without the permission get no link, and the page refuses them."""
    click_and_hold(live, 7)
    log_in(live, "support")

    live.sees("report:7", "#result_list")
    assert not live.count("a[href*=release]")
    live.open(f"{ADMIN}release/?key=report:7")
    live.sees("403 Forbidden", "body")


def test_admin_shows_a_usual_key_on_one_line_of_a_telephone(live: Browser) -> None:
    """Other columns leave no room, and letters of a key below each other say little."""
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    live.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        click_and_hold(live, 7)
        log_in(live, "support")
        live.sees("report:7", "#result_list")
        lines = live.driver.execute_script(
            "const keys = [...document.querySelectorAll('#result_list th.key')];"
            "const cell = keys.find((one) => one.textContent === 'report:7');"
            "const text = document.createRange();"
            "text.selectNodeContents(cell);"
            "return text.getClientRects().length;"
        )
        assert lines == 1
    finally:
        live.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
