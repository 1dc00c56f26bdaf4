"""``python -m tests.example.pictures``: take the pictures of the live page.

It follows the steps of the example's README first, so the page has something to show.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.example.support import ROOT, open_browser, open_site
from tests.harness.waiting import until

if TYPE_CHECKING:
    from tests.example.support import Browser

PICTURES = ROOT / "docs" / "pictures"
SECONDS_BETWEEN = 2.5


def take(browser: Browser) -> None:
    """Follow the steps, and take a picture in light and in dark colours."""
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
    """Run a customer's report ten times at once."""
    browser.choose("#customer", str(customer))
    browser.click("#run-ten")


def press(browser: Browser, node: int) -> None:
    """Stop a node, or start it."""
    button = f"#nodes tbody tr:nth-child({node}) button"
    word = browser.text(button)
    browser.click(button)
    browser.wait(lambda: browser.text(button) != word, f"{word} of node {node}")


def pause(browser: Browser) -> None:
    """Wait for some seconds by the clock of the page."""
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
