"""The page of locks in a browser: it refreshes, fits, and releases with the token."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_redlock.locks.limits import Limit
from celery_redlock.records.forced_releases import forced_releases
from celery_redlock.web import site
from tests.conftest import missing
from tests.example.support import Browser, browser_lacks, open_browser
from tests.web.conftest import TOKEN, Office

pytestmark = pytest.mark.long

LONG = "report:" + "a-customer-with-a-very-long-name-" * 4 + "0123456789" * 8
COLOURS = """
    const style = getComputedStyle(document.body);
    const parts = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
    return [parts(style.backgroundColor), parts(style.color)];
"""
WIDER = """
    const width = document.documentElement.clientWidth;
    const isSeen = (one) => !one.closest(".visually-hidden, thead");
    return [...document.body.querySelectorAll("*")].filter(isSeen)
        .filter((one) => one.getBoundingClientRect().right > width + 1)
        .map((one) => `${one.tagName}: ${one.textContent.slice(0, 60)}`)
"""


@pytest.fixture(scope="session")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Give a window of Chromium; without one, skip here and fail in CI."""
    if lacks := browser_lacks():
        missing(lacks)
    pytest.importorskip("selenium")
    with open_browser(tmp_path_factory.mktemp("chromium"), "") as browser:
        yield browser


@pytest.fixture
def show(
    window: Browser, office: Office, serve: Callable[..., str]
) -> Iterator[Callable[..., Browser]]:
    """Give a function that opens the page in the browser."""

    def open_page(page: Any = None) -> Browser:
        url = serve(page or office.page).rstrip("/")
        browser = Browser(window.driver, url)
        browser.prefer("light")
        browser.open("/")
        browser.find("#verdict")
        return browser

    yield open_page
    window.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    window.driver.get("about:blank")


def be_wide(browser: Browser, width: int) -> None:
    """Give the window this width, and return when the page has it."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    script = "return innerWidth"
    browser.wait(lambda: browser.driver.execute_script(script) == width, "it is wide")


def hold_all_kinds(office: Office) -> None:
    """Take locks of all kinds, with texts as long as they may be."""
    fields: dict[str, Any] = {"task": f"shop.tasks.{'very_long_name_' * 5}"}
    fields["host"] = "host-" * 12
    office.hold(LONG, **fields, task_id="0c9d7f66-1f9e-4a3e-b2a1-5d2e77b1aa01")
    office.hold(["account:1", "account:2"])
    office.hold("imports", (Limit("imports", 2), Limit("imports", 9, 60.0)))
    office.post(office.form("account:1", reason="why-" * 40))
    office.hold("account:1")


def keys(browser: Browser) -> list[str]:
    """Return the keys of the locks on the page."""
    return [row["key"] for row in browser.facts("#locks tbody tr") if "key" in row]


def test_page_shows_a_lock_that_is_taken_and_released_meanwhile(
    office: Office, show: Callable[..., Browser]
) -> None:
    """It refreshes by itself, and is not loaded again."""
    office.hold("first")
    browser = show()
    browser.wait(lambda: keys(browser) == ["first"], "one lock")
    browser.driver.execute_script("window.isSame = true")

    lease = office.hold("second")
    browser.wait(lambda: sorted(keys(browser)) == ["first", "second"], "two locks")
    office.service.release(lease)
    browser.wait(lambda: keys(browser) == ["first"], "one lock again")

    assert browser.driver.execute_script("return window.isSame")
    assert browser.text("#stale") == ""


def test_page_changes_only_what_differs(
    office: Office, show: Callable[..., Browser]
) -> None:
    """Rows stay the same elements, so the focus and a text that is typed stay."""
    office.hold("second", started=1_790_000_001.0)
    browser = show()
    browser.type("#q", "typed")
    row = browser.find("#locks tbody tr[data-key='second'] a")
    browser.driver.execute_script("arguments[0].focus()", row)
    age = browser.text("#locks")

    office.hold("first", started=1_790_000_000.0)
    browser.wait(lambda: keys(browser) == ["first", "second"], "a row above it")
    browser.wait(lambda: browser.text("#locks") != age, "ages have changed")

    assert browser.driver.switch_to.active_element == row
    assert browser.find("#q").get_property("value") == "typed"


def test_page_can_be_paused(office: Office, show: Callable[..., Browser]) -> None:
    """Until it goes on, it asks for nothing."""
    browser = show()
    browser.click("#pause")
    assert browser.text("#pause") == "Go on"

    office.hold("k")
    browser.click("#pause")

    browser.wait(lambda: keys(browser) == ["k"], "the lock is shown")


def test_page_shows_a_dead_node_and_then_the_loss_of_the_quorum(
    office: Office, show: Callable[..., Browser]
) -> None:
    """Without a quorum it cannot be told what is locked, and that is what it says."""
    office.hold("k")
    browser = show()
    browser.wait(lambda: "All 3 nodes vote." in browser.text("#verdict"), "all vote")

    office.nodes.nodes[0].kill()
    said = "1 lock held. Locks are granted: 2 of 3 nodes vote, 2 are enough."
    browser.wait(lambda: browser.text("#verdict") == said, "a dead node")
    assert "refused the connection" in browser.text("#nodes-and-limits")
    assert "1 lock held, as seen on 2 of 3 nodes." in browser.text("#locks")

    office.nodes.nodes[1].kill()
    said = "No lock can be granted: 1 of 3 nodes vote, 2 are needed."
    browser.wait(lambda: browser.text("#verdict") == said, "no quorum")
    assert "Too few nodes can tell" in browser.text("#state")
    assert "may be held" in browser.text("#locks")
    assert "No lock is held" not in browser.text()

    browser.open("/?q=other*")
    browser.sees("It cannot be told whether a lock is held whose key matches other*.")


def test_page_of_a_server_that_has_ended_says_that_it_is_old(
    office: Office, show: Callable[..., Browser]
) -> None:
    """The last state stays, with the time at which it was seen."""
    office.hold("k")
    is_gone = False

    def page(environ: Any, start_response: Any) -> Any:
        if is_gone:
            raise ConnectionError("as after the end of the server")
        return office.page(environ, start_response)

    browser = show(page)
    browser.wait(lambda: keys(browser) == ["k"], "the lock is shown")
    is_gone = True

    browser.wait(lambda: "does not answer now" in browser.text("#stale"), "it is old")
    assert "This is what was seen at" in browser.text("#stale")
    assert keys(browser) == ["k"]

    is_gone = False
    browser.wait(lambda: browser.text("#stale") == "", "it is new")


def test_page_of_a_server_that_hangs_says_that_it_is_old(
    office: Office, show: Callable[..., Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections and does not answer: nothing says that it has ended."""
    monkeypatch.setattr(site, "_EVERY", 0.1)  # seconds
    office.hold("k")
    hangs, answers = threading.Event(), threading.Event()

    def page(environ: Any, start_response: Any) -> Any:
        if hangs.is_set():
            answers.wait(60)
        return office.page(environ, start_response)

    browser = show(page)
    browser.wait(lambda: keys(browser) == ["k"], "the lock is shown")
    hangs.set()

    try:
        stale = "does not answer now"
        browser.wait(lambda: stale in browser.text("#stale"), "it is old")
        assert keys(browser) == ["k"]
    finally:
        hangs.clear()
        answers.set()
    browser.wait(lambda: browser.text("#stale") == "", "it is new")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 800, 1280])
@pytest.mark.parametrize("path", ["/", "/release?key=imports"])
def test_page_fits_in_light_and_dark(
    office: Office, show: Callable[..., Browser], scheme: str, width: int, path: str
) -> None:
    """Nothing is wider than the window, and texts differ from their background."""
    hold_all_kinds(office)
    office.nodes.nodes[0].kill()
    browser = show()
    browser.prefer(scheme)
    be_wide(browser, width)
    browser.open(path)
    browser.find(".card")

    scrolls = "return document.documentElement.scrollWidth"
    assert browser.driver.execute_script(scrolls) <= width
    assert browser.driver.execute_script(WIDER) == []
    paper, ink = map(sum, browser.driver.execute_script(COLOURS))
    assert (paper > 600, ink < 200) == (scheme == "light",) * 2
    assert (paper < 200, ink > 600) == (scheme == "dark",) * 2


def test_everything_has_a_name_that_can_be_read_out(
    office: Office, show: Callable[..., Browser]
) -> None:
    """Controls have names, tables have captions, and the page has a language."""
    hold_all_kinds(office)
    browser = show()

    for path in ("/", "/release?key=imports"):
        browser.open(path)
        browser.find(".card")
        controls = "button:not([hidden]), input:not([type=hidden]), a"
        found = browser.driver.find_elements("css selector", controls)
        assert found
        assert all(control.accessible_name for control in found)
        assert browser.count("table") == browser.count("table > caption")
        assert browser.count("html[lang=en] main h1") == 1


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_reason_is_seen_whole_while_it_is_written(
    office: Office, show: Callable[..., Browser], width: int
) -> None:
    """It may be a sentence: the operator reads it before the release."""
    office.hold("invoice:42")
    browser = show()
    be_wide(browser, width)
    browser.open("/release?key=invoice:42")

    browser.type("#reason", ("the host was powered off, " * 8)[:200])

    hidden = (
        "const {scrollWidth, clientWidth, scrollHeight, clientHeight} = "
        "document.querySelector('#reason'); "
        "return [scrollWidth - clientWidth, scrollHeight - clientHeight]"
    )
    assert browser.driver.execute_script(hidden) == [0, 0]


def test_reason_of_several_lines_is_recorded_as_one(
    office: Office, show: Callable[..., Browser]
) -> None:
    """A record is a line of a table, and of a log."""
    office.hold("invoice:42")
    browser = show()
    browser.open("/release?key=invoice:42")

    fill_in(browser, who="alice", reason="it is\nstuck", token=TOKEN)

    browser.sees("Released invoice:42 on 3 of 3 nodes")
    (record,) = forced_releases(office.service).found
    assert record.reason == "it is stuck"


def fill_in(browser: Browser, **fields: str) -> None:
    """Fill in the form of a release, and confirm it."""
    for name, text in fields.items():
        browser.type(f"#{name}", text)
    browser.click("button.danger")


def test_release_with_the_token_is_done_and_listed(
    office: Office, show: Callable[..., Browser]
) -> None:
    """The link leads to the question, and the list then names who released it."""
    office.hold("invoice:42")
    browser = show()

    browser.click("a[aria-label='Release invoice:42']")
    asked = browser.sees("two may run at the same time")
    fill_in(browser, who="alice", reason="it is stuck", token=TOKEN)
    done = browser.sees("Released invoice:42 on 3 of 3 nodes")
    browser.click("main a")

    assert "proj.send_invoice[id-of-it] on worker-1 (pid 4711)" in asked
    assert TOKEN not in done
    browser.sees("No lock is held.")
    assert "alice" in browser.text("#releases")
    assert "it is stuck" in browser.text("#releases")
    (record,) = forced_releases(office.service).found
    assert (record.who, record.reason) == ("alice", "it is stuck")
    assert TOKEN not in browser.driver.current_url


def test_release_without_the_token_is_refused(
    office: Office, show: Callable[..., Browser]
) -> None:
    """The form needs all fields; a wrong token releases nothing."""
    office.hold("invoice:42")
    browser = show()
    browser.open("/release?key=invoice:42")

    browser.click("button.danger")  # the browser asks for the empty fields
    browser.sees("two may run at the same time")
    fill_in(browser, who="mallory", reason="because", token="wrong")

    browser.sees("The token is wrong: nothing was released.")
    assert office.is_held("invoice:42")
    assert forced_releases(office.service).found == []


def test_script_of_a_key_is_not_run(
    office: Office, show: Callable[..., Browser]
) -> None:
    """A key is a text on the page, and the policy forbids other scripts."""
    run = "document.title = 'run'"
    evil = f'<img src=x onerror="{run}"><script>{run}</script>'
    office.hold(evil, task=evil, host=evil)
    browser = show()

    browser.wait(lambda: keys(browser) == [evil], "the lock is shown")

    assert evil in browser.text("#locks")
    assert browser.driver.title == "Locks – shop"
    assert not browser.count("main img, main script")
    policy = (
        "const one = document.createElement('script');"
        "one.textContent = \"document.title = 'run'\"; document.body.append(one);"
        "return document.title"
    )
    assert browser.driver.execute_script(policy) == "Locks – shop"
