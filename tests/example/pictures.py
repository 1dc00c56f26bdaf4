"""``python -m tests.example.pictures``: take the pictures of the live page.

It does what the example's README says one should try, and looks at what came of it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.example.support import ROOT, open_browser, open_site
from tests.worker.harness.waiting import until

if TYPE_CHECKING:
    from tests.example.support import Browser

PICTURES = ROOT / "docs" / "pictures"
SECONDS_BETWEEN = 2.5


def take(browser: Browser) -> None:
    """Play, and take a picture in the light and one in the dark."""
    browser.open("/invoices/")
    for made in (1, 2, 3):
        browser.click("main form button")
        browser.wait(
            lambda made=made: browser.count("main tbody tr") == made + 1, "it is made"
        )
    browser.open("/live/")
    browser.find("#nodes tbody tr")
    ten_clicks(browser, 1)
    pause(browser)
    browser.click("#kill")
    pause(browser)
    ten_clicks(browser, 6)
    for node in (1, 3, 5):
        press(browser, node)
    browser.wait(lambda: browser.count("#timeline .lost"), "a lock is lost")
    for node in (1, 3, 5):
        press(browser, node)
    browser.wait(lambda: browser.text("#verdict").startswith("All 5"), "all vote")
    for customer in (3, 4):
        ten_clicks(browser, customer)
        pause(browser)
    press(browser, 2)
    ten_clicks(browser, 1)
    pause(browser)
    ten_clicks(browser, 5)
    pause(browser)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for scheme, name in (("light", "example"), ("dark", "example-dark")):
        browser.prefer(scheme)
        browser.wait(lambda: browser.count("#timeline .running"), "something runs")
        browser.picture(PICTURES / f"{name}.png")


def ten_clicks(browser: Browser, customer: int) -> None:
    """Click for this customer."""
    browser.choose("#customer", str(customer))
    browser.click("#run-ten")


def press(browser: Browser, node: int) -> None:
    """Stop a node, or start it."""
    button = f"#nodes tbody tr:nth-child({node}) button"
    word = browser.text(button)
    browser.click(button)
    browser.wait(lambda: browser.text(button) != word, f"{word} of node {node}")


def pause(browser: Browser) -> None:
    """Let the clock of the page go on a little."""
    now = "return Date.now() / 1000"
    end = browser.driver.execute_script(now) + SECONDS_BETWEEN
    until(lambda: browser.driver.execute_script(now) > end)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            open_site(folder, report_seconds=12) as site,
            open_browser(folder / "chromium", site.url, height=1440) as window,
        ):
            take(window)
