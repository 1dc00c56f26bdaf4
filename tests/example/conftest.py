"""The example site, and one browser for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import missing
from tests.example.support import Browser, Site, browser_lacks, open_browser, open_site


@pytest.fixture(scope="session")
def site(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Run the example; without a browser, skip here and fail in CI."""
    if lacks := browser_lacks():
        missing(lacks)
    for package in ("selenium", "django_celery_beat", "django_celery_results"):
        pytest.importorskip(package)
    with open_site(tmp_path_factory.mktemp("example")) as running:
        yield running


@pytest.fixture(scope="session")
def window(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Give a window of Chromium."""
    with open_browser(tmp_path_factory.mktemp("chromium"), site.url) as browser:
        yield browser


@pytest.fixture
def browser(window: Browser) -> Browser:
    """Give the window, without a login."""
    window.driver.delete_all_cookies()
    # The timeline is not redrawn under the mouse, which is where the last test was.
    moved = {"type": "mouseMoved", "x": 0, "y": 0}
    window.driver.execute_cdp_cmd("Input.dispatchMouseEvent", moved)
    return window
