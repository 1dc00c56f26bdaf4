"""The example on a store in place of lock nodes, without a browser."""

from __future__ import annotations

import json
import re
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest

from celery_redlock.devnodes import STORES
from tests.example.support import PATIENCE, open_site
from tests.harness.store_nodes import store_servers
from tests.harness.waiting import until


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


@pytest.mark.parametrize("kind", STORES)
def test_site_locks_in_a_store(kind: str, tmp_path: Path) -> None:
    """Each of its servers can be stopped; a minority is not missed; no runs overlap."""
    members = len(store_servers(kind).nodes)
    with open_site(tmp_path, "--store", kind, report_seconds=2.0) as site:
        visitor = Visitor(site.url)
        visitor.wait("all vote", members)
        assert len(visitor.state()["nodes"]) == members
        visitor.press("run/", customer=1, times=5)
        if members > 1:
            visitor.press("nodes/1/stop/")
            visitor.wait("two vote", members - 1)
        assert visitor.press("nodes/0/stop/") == "Server 1 was killed."
        visitor.wait("none votes", 0)
        said = visitor.press("nodes/0/start/")
        assert said == "Server 1 runs again, with what it had on disk."
        visitor.wait("locks are granted again", max(1, members - 1))
        visitor.press("run/", customer=2, times=5)

        def is_done() -> bool:
            runs = visitor.state()["runs"]
            return {"report:1", "report:2"} <= {
                run["key"] for run in runs if run["state"] == "done"
            }

        until(is_done, PATIENCE, what="reports of both")
        assert visitor.state()["overlaps"] == 0
