"""The example site as a process, and its visitors: a program and a browser."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

from celery_redlock.devnodes.processes import Process
from tests.harness.waiting import until

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0  # seconds in which a page must show the expected text
_STARTS_WITHIN, _ENDS_WITHIN = 90.0, 30.0


def _program(*names: str) -> str | None:
    return next((path for path in map(shutil.which, names) if path), None)


def browser_lacks() -> str:
    """Return what this machine lacks to run a browser, or ``""``."""
    if not _program("chromium", "chromium-browser", "google-chrome"):
        return "Chromium is not installed: on Debian, apt-get install chromium"
    if not _program("chromedriver"):
        return (
            "chromedriver is not installed: on Debian, apt-get install chromium-driver"
        )
    return ""


@dataclass(frozen=True)
class Site:
    """The example as it runs.

    Attributes:
        url: The URL of its web server.
        var: The folder with its database.
    """

    url: str
    var: Path

    @property
    def nodes(self) -> list[str]:
        """The URLs of its lock nodes."""
        return self._addresses()["REDLOCK_NODES"].split(",")

    def _addresses(self) -> dict[str, str]:
        text = (self.var / "env").read_text()
        return dict(re.findall(r"^export (\w+)='(.*)'$", text, re.MULTILINE))

    @contextlib.contextmanager
    def forged_runs(
        self, key: str, spans: list[tuple[float, float]], *, task: str = "t"
    ) -> Iterator[None]:
        """Add runs to the journal for the time of a block.

        Args:
            key: The key of the runs.
            spans: How many seconds ago each began and ended.
            task: The name of their task.
        """
        now = datetime.now(timezone.utc)
        row = {"task": task, "state": "done", "renewals": 0, "task_id": "", "note": ""}
        row |= {"host": "elsewhere", "holder": "", "key": key, "pid": 1}
        database = sqlite3.connect(self.var / "db.sqlite3", timeout=20)
        with contextlib.closing(database):
            for fence, (began, ended) in enumerate(spans, start=1):
                times = {
                    "began_at": str(now - timedelta(seconds=began))[:26],
                    "ended_at": str(now - timedelta(seconds=ended))[:26],
                }
                facts = row | times | {"fence": fence}
                marks = ", ".join("?" * len(facts))
                database.execute(
                    f"INSERT INTO live_run ({', '.join(facts)}) VALUES ({marks})",  # noqa: S608
                    list(facts.values()),
                )
            database.commit()
            yield
            database.execute("DELETE FROM live_run WHERE host = 'elsewhere'")
            database.commit()

    def manage(self, *words: str) -> subprocess.Popen[str]:
        """Start a command of ``manage.py`` with the addresses of the nodes."""
        return subprocess.Popen(  # noqa: S603  (a program of this repository)
            [sys.executable, str(ROOT / "example_project/manage.py"), *words],
            env={**os.environ, **self._addresses(), "REPORTS_VAR": str(self.var)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@contextlib.contextmanager
def open_site(var: Path, *options: str, report_seconds: float = 12.0) -> Iterator[Site]:
    """Run the example; stop it as Ctrl-C does.

    Args:
        var: The folder for its database and logs.
        *options: More words of its command line.
        report_seconds: The duration of a report.
    """
    process = Process(
        "the example",
        [sys.executable, "-u", str(ROOT / "example_project" / "run.py"), *options],
        log=var / "out",
        ready="Ctrl-C stops everything",
        environment={
            "REPORTS_VAR": str(var),
            "REPORT_SECONDS": str(report_seconds),
            "FETCH_SECONDS": "3",  # on average
        },
    )
    process.start()
    try:
        process.wait_until_ready(_STARTS_WITHIN)
        found = re.search(r"(http://\S+)/live/", process.logs())
        assert found
        yield Site(found[1], var)
        process.signal(signal.SIGINT)
        process.wait(_ENDS_WITHIN)
    finally:
        process.kill()
    assert process.returncode == 0, process.logs()


class Visitor:
    """A visitor of the live page, who sends what its buttons send."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/live/"
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()))
        page = self._opener.open(self._url).read().decode()
        found = re.search(r'csrfmiddlewaretoken" value="(\w+)"', page)
        assert found
        self._token = found[1]

    def state(self) -> Any:
        """Return what the page shows."""
        return json.load(self._opener.open(f"{self._url}state.json"))

    def press(self, path: str, **fields: object) -> str:
        """Press a button, and return what the page says."""
        headers = {"Accept": "application/json", "X-CSRFToken": self._token}
        headers["Referer"] = self._url
        data = urlencode(fields).encode()
        request = Request(self._url + path, data, headers)  # noqa: S310  (http)
        done: str = json.load(self._opener.open(request))["done"]
        return done

    def wait(self, what: str, servers: int) -> None:
        """Wait until so many servers vote, and locks are granted or are not."""

        def is_so() -> bool:
            state = self.state()
            return (state["voting"], state["can_lock"]) == (servers, bool(servers))

        until(is_so, PATIENCE, what=what)


@contextlib.contextmanager
def open_browser(folder: Path, url: str, *, height: int = 1000) -> Iterator[Browser]:
    """Start Chromium without a screen.

    Args:
        folder: The folder for its profile.
        url: The URL of the site.
        height: The height of the window in pixels.
    """
    from selenium import webdriver  # noqa: PLC0415  (only where there is a browser)

    options = webdriver.ChromeOptions()
    options.binary_location = (
        _program("chromium", "chromium-browser", "google-chrome") or ""
    )
    for switch in (
        "--headless=new",
        "--no-sandbox",  # root cannot have one
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--no-first-run",
        "--hide-scrollbars",
        f"--window-size=1280,{height}",
        f"--user-data-dir={folder / 'profile'}",
    ):
        options.add_argument(switch)
    # Without a path, selenium would download a driver.
    service = webdriver.ChromeService(executable_path=_program("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver, url)
    finally:
        driver.quit()


class Browser:
    """A window of Chromium: it finds elements by CSS, and waits for changes."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self._url = url

    def open(self, path: str) -> None:
        """Go to a page of the site."""
        self.driver.get(self._url + path)

    def find(self, css: str) -> Any:
        """Wait for an element, and return the first."""
        self.wait(lambda: self.count(css), f"there is {css}")
        return self.driver.find_element("css selector", css)

    def count(self, css: str) -> int:
        """Return the number of elements."""
        return len(self.driver.find_elements("css selector", css))

    def text(self, css: str = "body") -> str:
        """Return the visible text of the first element, in one line."""
        script = "return (document.querySelector(arguments[0]) || {}).innerText || ''"
        return " ".join(self.driver.execute_script(script, css).split())

    def facts(self, css: str) -> list[dict[str, str]]:
        """Return the ``data-`` attributes of all elements at one moment."""
        script = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".map((one) => ({...one.dataset}))"
        )
        return list(self.driver.execute_script(script, css))

    def attributes(self, css: str, name: str) -> list[str]:
        """Return an attribute of all elements at one moment."""
        script = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".map((one) => one.getAttribute(arguments[1]))"
        )
        return list(self.driver.execute_script(script, css, name))

    def click(self, css: str) -> None:
        """Click on the first element, also while the page changes."""
        from selenium.common import StaleElementReferenceException  # noqa: PLC0415

        while True:
            with contextlib.suppress(StaleElementReferenceException):
                self.find(css).click()
                return

    def choose(self, css: str, value: str) -> None:
        """Choose an option of a select by its value."""
        self.click(f"{css} option[value='{value}']")

    def type(self, css: str, text: str) -> None:
        """Type into a field."""
        self.find(css).send_keys(text)

    def wait(self, condition: Any, what: str, seconds: float = PATIENCE) -> None:
        """Wait for a condition; a failure shows the text of the page."""
        try:
            until(condition, seconds, what=what)
        except Exception as error:
            raise AssertionError(f"{error}. The page shows:\n{self.text()}") from error

    def sees(self, text: str, css: str = "main, #container") -> str:
        """Wait until an element contains this text, and return its whole text."""
        self.wait(lambda: text in self.text(css), f"{text!r} is shown")
        return self.text(css)

    def prefer(self, scheme: str) -> None:
        """Make the system prefer ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": features}
        )

    def picture(self, path: Path) -> None:
        """Save a screenshot of the window."""
        self.driver.save_screenshot(str(path))
