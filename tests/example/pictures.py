"""``python -m tests.example.pictures``: take the pictures of the example.

It follows the steps of the example's README first, so the pages have something to show.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.example.support import ROOT, Browser, open_browser, open_site
from tests.harness.waiting import until

PICTURES = ROOT / "docs" / "pictures"
SECONDS_BETWEEN = 2.5


def take(browser: Browser) -> None:
    """Follow the steps, and take the picture of the live page."""
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
    picture(browser, "example")


def take_limits(browser: Browser) -> None:
    """Let four tenants publish more jobs than may run, and take a picture."""
    browser.open("/limits/")
    browser.find("#tenants tbody tr")
    for tenant in (1, 2, 3, 5):
        browser.choose("#tenant", str(tenant))
        browser.click("#publish-ten")
        pause(browser)
    pause(browser)
    picture(browser, "limits")


def picture(browser: Browser, name: str) -> None:
    """Take a picture in light and in dark colours, while something runs."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for scheme, suffix in (("light", ""), ("dark", "-dark")):
        browser.prefer(scheme)
        browser.wait(lambda: browser.count("#timeline .running"), "something runs")
        browser.picture(PICTURES / f"{name}{suffix}.png")
    browser.prefer("light")


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
            take_limits(window)
            take(window)
