"""The page of locks as a WSGI application: its contents and rules of access."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import celery
import pytest
from celery import Celery
from hypothesis import HealthCheck, given, settings
from prometheus_client import CollectorRegistry

from celery_redlock import metrics, web
from celery_redlock.app.runtime import runtime_of
from celery_redlock.errors import ConfigurationError
from celery_redlock.locks.limits import Limit, wanted
from celery_redlock.records.forced_releases import forced_releases
from tests.harness.hostile import VALUES, values
from tests.nodes.support import locks, until
from tests.web.conftest import BUSY, HOST, TOKEN, Office

# -- the list ----------------------------------------------------------------------


def test_page_shows_the_holders_and_the_nodes(office: Office) -> None:
    """A row has key, task, holder, age, rest of the ttl, fence and votes."""
    lease = office.hold("invoice:42")

    page = office.get()

    who = r"invoice:42 proj\.send_invoice id-of-it worker-1 pid 4711"
    row = rf"{who} [^ ]+ .* {lease.fence} 3 of 3"
    assert page.status == 200
    assert re.search(row, page.text)
    assert "since 2026-09-21 14:13:20 UTC" in page.text
    assert "1 lock held, as seen on 3 of 3 nodes." in page.text
    assert "All 3 nodes vote." in page.text
    assert page.text.count("/0 votes 1") == 3


def test_page_shows_no_token(office: Office) -> None:
    """The token of a lock proves ownership, and that of the page allows releases."""
    lease = office.hold()

    bodies = [office.get(path).body for path in ("/", "/release?key=k", "/?all=1")]

    assert all("proj.send_invoice" in body for body in bodies)
    assert not any(lease.token.partition(".")[0] in body for body in bodies)
    assert not any(TOKEN in body for body in bodies)


def test_page_escapes_what_it_shows(office: Office) -> None:
    """Keys, tasks, hosts and reasons are texts, in attributes and fields, too."""
    evil = "\"'><script>alert(1)</script>"
    office.hold(evil, task=evil, task_id=evil, host=evil)
    office.post(office.form(evil, who=evil, reason=evil))
    office.hold(evil, task=evil, task_id=evil, host=evil)

    asked = office.get("/release?key=%22%27%3E%3Cscript%3Ealert(1)%3C/script%3E")
    pages = [office.get(), office.get("/?q=%22%27%3E%3Cscript%3E*"), asked]

    for page in pages:
        assert "&lt;script&gt;alert(1)" in page.body
        assert not re.search(r"<script(?! src=)", page.body)
        assert "\"'>" not in page.body


def test_page_shows_no_password(office: Office) -> None:
    """A node is named without its user and password, also if it does not answer."""
    urls = [url.replace("redis://", "redis://me:secret@") for url in office.nodes.urls]
    app = Celery("shop", set_as_current=False)
    app.conf.update(redlock_nodes=urls, redlock_connect_timeout=BUSY)
    page = web.page(app, TOKEN)

    found = [office.get(path, page=page) for path in ("/", "/healthz", "/metrics")]
    page.close()

    assert not any("secret" in one.body for one in found)
    assert found[0].text.count("127.0.0.1:") == 3


def test_page_names_the_state_of_each_node(office: Office) -> None:
    """Of three nodes one is dead: the locks are known, and two nodes vote."""
    office.hold()
    office.nodes.nodes[0].kill()

    page = office.get()

    assert "Locks are granted: 2 of 3 nodes vote, 2 are enough." in page.text
    assert "/0 refused the connection –" in page.text
    assert "1 lock held, as seen on 2 of 3 nodes." in page.text


def test_page_says_how_long_a_node_is_in_quarantine(office: Office) -> None:
    """A node that restarted empty does not vote, and cannot tell what is held."""
    node = office.nodes.nodes[0]
    node.kill()
    node.start()

    def text() -> str:
        office.service.check()  # the quarantine begins with a request for a vote
        return office.get().text

    until(lambda: "in quarantine, " in text(), what="a quarantine")

    page = office.get()
    assert "Locks are granted: 2 of 3 nodes vote, 2 are enough." in page.text
    assert "0 locks held, as seen on 2 of 3 nodes." in page.text


@pytest.mark.parametrize("path", ["/", "/?all=1", "/?q=other*"])
def test_page_without_a_quorum_never_says_that_nothing_is_locked(
    office: Office, path: str
) -> None:
    """It cannot be told which locks are held, and how many permits are in use."""
    office.hold("imports", (Limit("imports", 2),))
    for node in office.nodes.nodes[:2]:
        node.kill()

    page = office.get(path)

    assert page.status == 200
    assert "No lock can be granted: 1 of 3 nodes vote, 2 are needed." in page.text
    assert "locks are held: 1 of 3 can, 2 are needed." in page.text
    assert "No lock is held" not in page.text
    assert "0 held" not in page.text
    assert "permits in use." not in page.text.replace(
        "cannot be told how many permits are in use.", ""
    )
    assert (
        "Latest releases by operators It cannot be told whether there were releases by "
        "operators: too few nodes can tell." in page.text
    )


def test_page_keeps_a_release_of_which_a_minority_tells(office: Office) -> None:
    """There may be others. With a majority, no others are spoken of."""
    office.hold()
    office.post(office.form())
    of_all = office.get()
    for node in office.nodes.nodes[:2]:
        node.kill()

    of_one = office.get("/?q=k*")  # a look of its own

    assert "cannot be told" not in of_all.text
    assert "alice 10.0.0.3, celery redlock web" in of_one.text
    assert "It cannot be told whether there were other releases by" in of_one.text


def test_page_says_that_nothing_is_locked_where_that_is_known(office: Office) -> None:
    """A majority can tell, and has no lock."""
    assert "No lock is held." in office.get().text
    assert "No lock is held whose key matches a*." in office.get("/?q=a*").text


def test_page_says_which_permit_a_lock_is(office: Office) -> None:
    """It also says how many permits are in use, and which keys were taken together."""
    limits = (Limit("imports", 2), Limit("imports", 3, 60.0))
    office.hold("imports", limits)
    office.hold(["account:1", "account:2"])

    page = office.get()

    assert re.search(r"imports(##2)? permit \d of 2", page.text)
    assert "a start, kept until the period has passed" in page.text
    assert "imports: 1 of 2 permits in use." in page.text
    assert "imports: 1 of 3 starts in 60 s are taken." in page.text
    assert "account:1 account:2 proj.send_invoice id-of-it" in page.text


def test_page_is_searched_by_a_pattern(office: Office) -> None:
    """The pattern is one of Redis, and stays in the field."""
    office.hold("invoice:1")
    office.hold("report:1")

    page = office.get("/?q=report:*")

    assert "report:1" in page.text
    assert "invoice:1" not in page.text
    assert "1 lock held whose key matches report:*. All" in page.text
    assert "Matching locks" in page.text
    assert "1 lock held. All" not in page.text
    assert page.values("q") == []
    assert 'value="report:*"' in page.body


@pytest.mark.long
def test_no_value_of_another_program_breaks_the_page(
    open_office: Callable[..., Office],
) -> None:
    """The page lists its key, beside those of tasks, asks, and releases it."""
    office = open_office(1)
    office.hold()
    (node,) = office.nodes.nodes
    for value in VALUES:
        node.command("SET", "redlock:lock:odd", value, "PX", 60_000)

        page = office.get("/?all=1")
        assert (page.status, "Release odd" in page.body) == (200, True), value
        assert "Release k" in page.body
        done = office.post(office.form("odd"))
        assert (done.status, "Released odd" in done.text) == (200, True), value
        assert node.command("EXISTS", "redlock:lock:odd") == 0


@pytest.mark.long
@pytest.mark.timeout(900)  # a thousand requests
@given(value=values)
@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_generated_value_of_a_lock_breaks_the_page(
    office: Office, value: bytes
) -> None:
    """Values with any bytes, lines and numbers are listed, asked about and released."""
    for node in office.nodes.nodes:
        node.command("SET", "redlock:lock:odd", value, "PX", 60_000)

    page = office.get("/?all=1")
    assert (page.status, "Release odd" in page.body) == (200, True)
    done = office.post(office.form("odd"))
    assert (done.status, "Released odd" in done.text) == (200, True)


HOSTILE = ["*a" * 90 + "*b", "[z-a]", "[", "\\", "%ff", "\ud800"]


@pytest.mark.parametrize("pattern", HOSTILE, ids=range(len(HOSTILE)))
def test_no_search_is_an_error_or_takes_long(office: Office, pattern: str) -> None:
    """A pattern that other matchers would try for ever finds what it matches."""
    office.hold("a" * 500)

    page = office.get(f"/?{urlencode({'q': pattern}, errors='surrogatepass')}")

    assert page.status == 200
    assert "No lock is held" in page.text


def test_search_that_is_too_long_is_refused(office: Office) -> None:
    """The nodes are not asked."""
    page = office.get(f"/?q={'a*' * 101}")

    assert page.status == 400
    assert "The search has 202 characters, and may have 200 at most." in page.text


def test_key_that_no_lock_can_have_is_refused_in_few_words(office: Office) -> None:
    """The page does not repeat a key that fills its form."""
    fields = {"key": "k" * 60_000, "token": TOKEN, "who": "a", "reason": "b"}

    page = office.post({**fields, "shown": "x"})

    assert page.status == 404
    assert "A key of 60,000 bytes is too long" in page.text
    assert "k" * 10_000 not in page.text


@pytest.mark.parametrize(
    "sent",
    [
        {"SITE": "cross-site", "MODE": "no-cors", "DEST": "image"},
        {"SITE": "same-site", "MODE": "no-cors", "DEST": "script"},
        {"SITE": "cross-site", "MODE": "navigate", "DEST": "iframe"},
    ],
)
def test_another_site_cannot_make_the_page_ask_the_nodes(
    office: Office, sent: dict[str, str]
) -> None:
    """An image or a frame of another site is refused; its user need not notice."""
    environ: dict[str, Any] = {f"HTTP_SEC_FETCH_{n}": sent[n] for n in sent}

    assert office.get("/", **environ).status == 403
    link = {**environ, "HTTP_SEC_FETCH_MODE": "navigate"}
    link["HTTP_SEC_FETCH_DEST"] = "document"
    assert office.get("/", **link).status == 200


def test_page_lists_keys_without_a_majority_on_request(office: Office) -> None:
    """A link leads to them."""
    office.nodes.nodes[0].command("SET", "redlock:lock:left", "x", "PX", 60_000)

    usual, everything = office.get(), office.get("/?all=1")

    assert "left" not in usual.text
    assert 'href="/?all=1"' in usual.body
    assert "left" in everything.text
    assert "not held" in everything.text


def test_page_of_a_lock_service_needs_no_app(office: Office) -> None:
    """The metrics have the gauges of the nodes only."""
    page = web.page(office.service)
    office.hold("invoice:42")

    assert "invoice:42" in office.get(page=page).text
    assert "redlock_node_votes" in office.get("/metrics", page=page).body
    page.close()


def test_page_leaves_the_connections_of_its_lock_service_open(office: Office) -> None:
    """The service is the caller's, who may hold locks with it."""

    def connected() -> set[str]:
        return set(re.findall(r"\bid=(\d+)", node.command("CLIENT", "LIST")))

    node = office.nodes.nodes[0]
    page = web.page(office.service)
    office.hold("invoice:42")
    before = connected()

    office.get("/metrics", page=page)
    page.close()

    assert before <= connected()


def test_page_of_an_app_without_nodes_says_so(office: Office) -> None:
    """A missing setting is a sentence on the page, and the health is bad."""
    page = web.page(Celery("bare", set_as_current=False))

    shown, health = office.get(page=page), office.get("/healthz", page=page)

    assert (shown.status, health.status) == (503, 503)
    assert "redlock_nodes" in shown.text
    assert "redlock_nodes" in health.body


# -- health and metrics ------------------------------------------------------------


def test_health_is_good_while_a_majority_votes(office: Office) -> None:
    """The answer is one line of text; a monitor reads its status."""
    good = office.get("/healthz")
    office.nodes.nodes[0].kill()
    enough = office.get("/healthz")
    office.nodes.nodes[1].kill()
    bad = office.get("/healthz")

    assert (good.status, enough.status, bad.status) == (200, 200, 503)
    assert good.body == "ok: 3 of 3 nodes vote, 2 are needed.\n"
    assert enough.body == "ok: 2 of 3 nodes vote, 2 are needed.\n"
    said = "No lock can be granted: 1 of 3 nodes vote, 2 are needed.\n"
    assert bad.body == said
    assert bad.headers["Content-Type"].startswith("text/plain")


def test_page_of_a_single_node_names_no_majority(
    open_office: Callable[..., Office],
) -> None:
    """A store is one node, too: it votes, or it does not."""
    office, dead = open_office(1), open_office(1)
    dead.nodes.nodes[0].kill()
    shown, good = office.get().text, office.get("/healthz").body
    down, bad = dead.get().text, dead.get("/healthz").body

    assert "The node votes." in shown
    assert good == "ok: the node votes.\n"
    assert "No lock can be granted: the node does not vote." in down
    assert "The node cannot tell which locks are held." in down
    assert bad == "No lock can be granted: the node does not vote.\n"


def test_metrics_are_those_of_the_nodes(office: Office) -> None:
    """Nothing is counted unless metrics are installed."""
    office.nodes.nodes[0].kill()

    found = office.get("/metrics").body

    assert "redlock_quorum 2.0" in found
    assert found.count("redlock_node_votes{") == 3
    assert len(re.findall(r"redlock_node_votes\{.*\} 1.0", found)) == 2
    assert "redlock_conflicts" not in found


def test_metrics_count_the_locks_that_are_held(office: Office) -> None:
    """A permit is one; a start that is kept, and a lock on a minority, are none."""
    office.hold("invoice:1")
    key, limits = wanted("imports", 3, rate="10/m")
    office.service.acquire(key, ttl=60.0, limits=limits)
    minority = office.nodes.nodes[0]
    minority.command("SET", "redlock:lock:left", "over")
    until(lambda: "redlock_locks_held 2.0" in office.get("/metrics").body)
    for node in office.nodes.nodes[1:]:
        node.kill()

    unknown = office.get("/metrics").body

    assert "redlock_locks_held " not in unknown  # not 0
    assert f'redlock_build_info{{celery="{celery.__version__}",' in unknown


def test_metrics_that_are_installed_are_served(office: Office) -> None:
    """The page has the counters of this process, too."""
    installed = metrics.install(office.app, registry=CollectorRegistry())

    found = office.get("/metrics").body
    installed.uninstall()

    assert "redlock_conflicts" in found
    assert "redlock_quorum 2.0" in found
    assert "redlock_locks_held 0.0" in found


def test_metrics_without_the_client_are_not_found(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text says which package is missing."""
    monkeypatch.setitem(sys.modules, "celery_redlock.metrics", None)

    found = office.get("/metrics", page=web.page(office.service))

    assert found.status == 404
    assert "pip install 'celery-redlock[prometheus]'" in found.body


# -- rules of access ---------------------------------------------------------------

PATHS = [
    *("/", "/release?key=k", "/healthz", "/metrics"),
    *("/nothing", "/page.js", "/page.css"),
]


@pytest.mark.parametrize("path", PATHS)
def test_page_forbids_other_sites_to_frame_it_and_scripts_of_others(
    office: Office, path: str
) -> None:
    """Each response has these headers, also one that says no."""
    headers = office.get(path).headers

    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_page_has_no_style_or_script_in_itself(office: Office) -> None:
    """The policy would forbid them."""
    office.hold()

    for path in ("/", "/release?key=k"):
        body = office.get(path).body
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", body)


def test_page_for_known_hosts_answers_under_no_other_name(office: Office) -> None:
    """A site whose name leads to this machine cannot read the page."""
    page = web.page(office.app, hosts=["localhost", "::1"])

    def status(host: str, path: str) -> int:
        return office.get(path, page=page, HTTP_HOST=host).status

    for path in ("/", "/metrics", "/release", "/page.js"):
        assert status("evil.example:5556", path) == 421
        assert status("", path) == 421
    probe = office.get("/healthz", page=page, HTTP_HOST="10.0.0.7:5556")
    assert (probe.status, probe.body) == (200, "OK\n")
    assert [status(h, "/") for h in ("localhost", "LOCALHOST:5556", "[::1]:1")] == [
        200
    ] * 3
    page.close()


@pytest.mark.parametrize("host", ["locks.example:8443", "[::2]:8443", "::2"])
def test_page_answers_under_a_name_that_was_given_with_its_port(
    office: Office, host: str
) -> None:
    """As an operator copies it from the address of a proxy."""
    page = web.page(office.service, hosts=[host])
    browser = "[::2]" if "::" in host else "locks.example"

    assert office.get(page=page, HTTP_HOST=browser).status == 200
    assert office.get(page=page, HTTP_HOST="evil.example:8443").status == 421


def test_page_that_is_mounted_has_links_below_its_place(office: Office) -> None:
    """The address without a slash at the end leads to the page."""
    office.hold("a b&c")

    page = office.get(SCRIPT_NAME="/ops/locks")
    moved = office.get("", SCRIPT_NAME="/ops/locks")

    assert 'href="/ops/locks/release?key=a+b%26c"' in page.body
    assert 'href="/ops/locks/page.css?v=' in page.body
    assert (moved.status, moved.headers["Location"]) == (308, "/ops/locks/")


def test_page_refuses_other_methods(office: Office) -> None:
    """HEAD is a GET without a body."""
    head = office.get(REQUEST_METHOD="HEAD")
    other = office.get("/healthz", REQUEST_METHOD="DELETE")
    scrape = office.get("/metrics", REQUEST_METHOD="DELETE")

    assert (head.status, head.body) == (200, "")
    assert (other.status, other.headers["Allow"]) == (405, "GET, HEAD")
    assert (scrape.status, scrape.headers["Allow"]) == (405, "GET, HEAD")


def test_token_that_can_be_guessed_is_refused(office: Office) -> None:
    """The error says how to make one."""
    with pytest.raises(ConfigurationError, match=r"needs 16 at least.*token_urlsafe"):
        web.page(office.app, "secret")


# -- the release -------------------------------------------------------------------


def test_release_asks_and_states_the_risk(office: Office) -> None:
    """The question names the holder, and releases nothing."""
    office.hold()

    asked = office.get("/release?key=k")

    assert "proj.send_invoice[id-of-it] on worker-1 (pid 4711)" in asked.text
    assert "two may run at the same time" in asked.text
    assert "on 3 of 3 nodes" in asked.text
    assert office.is_held()


def test_release_with_the_token_is_done_and_recorded(office: Office) -> None:
    """The nodes keep who released it, from where, with which tool, and why."""
    office.hold("k/ü?&=")

    done = office.post(office.form("k/ü?&=", reason="stuck\nfor <hours>"))

    assert done.status == 200
    assert "Released k/ü?&amp;= on 3 of 3 nodes, held by proj.send_invoice" in done.text
    assert not office.is_held("k/")
    (record,) = forced_releases(office.service).found
    assert (record.key, record.who, record.host) == ("k/ü?&=", "alice", "10.0.0.3")
    assert (record.tool, record.reason) == ("celery redlock web", "stuck for <hours>")
    page = office.get()
    assert "No lock is held." in page.text
    assert "alice 10.0.0.3, celery redlock web stuck for &lt;hours&gt;" in page.text


def test_release_names_the_user_whom_the_server_has_authenticated(
    office: Office,
) -> None:
    """A name that was typed does not replace it."""
    office.hold()

    office.post(office.form(who="mallory"), REMOTE_USER="bob")

    assert [one.who for one in forced_releases(office.service).found] == ["bob"]


FOREIGN: list[dict[str, Any]] = [
    {"HTTP_ORIGIN": "https://evil.example"},
    {"HTTP_ORIGIN": "null"},
    {"HTTP_ORIGIN": None},
    {"HTTP_ORIGIN": None, "HTTP_REFERER": f"https://evil.example/{HOST}"},
    {"HTTP_ORIGIN": f"https://{HOST}.evil.example"},
    {"HTTP_ORIGIN": "", "HTTP_HOST": ""},
    {"HTTP_SEC_FETCH_SITE": "cross-site"},
    {"HTTP_SEC_FETCH_SITE": "same-site"},
]


@pytest.mark.parametrize("environ", FOREIGN, ids=range(len(FOREIGN)))
def test_release_from_another_site_is_refused(
    office: Office, environ: dict[str, Any]
) -> None:
    """Even with the right token."""
    office.hold()

    refused = office.post(office.form(), **environ)

    assert refused.status == 403
    assert "from another site: nothing was released" in refused.text
    assert office.is_held()


def test_release_is_accepted_with_a_referrer_of_the_page(office: Office) -> None:
    """A browser that sends no origin sends the page that the form is on."""
    office.hold()
    from_here: dict[str, Any] = {"HTTP_ORIGIN": None}
    from_here["HTTP_REFERER"] = f"https://{HOST}/release?key=k"

    assert office.post(office.form(), **from_here).status == 200
    assert not office.is_held()


@pytest.mark.parametrize(
    "token", ["", "wrong", TOKEN[:-1], f"{TOKEN} ", "ü", TOKEN.upper()]
)
def test_release_with_a_wrong_token_is_refused_and_logged(
    office: Office, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the address of the client, and not the token."""
    office.hold()

    refused = office.post(office.form(token=token))

    assert refused.status == 403
    assert "The token is wrong: nothing was released." in refused.text
    assert "10.0.0.3 sent a wrong token to release the lock 'k'." in caplog.text
    assert office.is_held()


def test_tokens_are_not_compared_after_some_wrong_ones(office: Office) -> None:
    """Not even the right one, from the same client; another client is not affected."""
    office.hold()
    form = office.form()
    for _ in range(5):
        assert office.post({**form, "token": "wrong"}).status == 403

    refused = office.post(form)

    assert refused.status == 429
    assert "this one was not compared, and nothing was released" in refused.text
    assert office.is_held()
    assert office.post(form, REMOTE_ADDR="10.0.0.4").status == 200


def test_page_that_fails_says_so_and_logs_why(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader sees no traceback."""
    monkeypatch.setattr("celery_redlock.web.site.runtime_of", None)

    page = office.get("/")

    assert (page.status, page.body) == (500, "The page failed: its log says why.\n")
    assert "The page '/' failed." in caplog.text
    assert "TypeError" in caplog.text


def test_release_on_a_read_only_page_is_refused(office: Office) -> None:
    """It has no link, and no form is accepted."""
    office.hold()
    page = web.page(office.app)
    form = office.form()

    listed = office.get(page=page)
    refused = [office.get("/release?key=k", page=page)]
    refused += [
        office.post({**form, "token": t}, page=page) for t in (TOKEN, "", "None")
    ]

    assert "release?" not in listed.body
    assert "Read-only." in listed.text
    assert [one.status for one in refused] == [403] * 4
    assert "`celery -A proj redlock release`" in refused[0].text
    assert office.is_held()
    page.close()


@pytest.mark.parametrize("missing", ["who", "reason"])
def test_release_needs_a_name_and_a_reason(office: Office, missing: str) -> None:
    """The page asks again, and keeps what was typed, but not the token."""
    office.hold()

    again = office.post(office.form(**{missing: " \n "}))

    assert again.status == 400
    assert "Say who you are, and why the lock is released." in again.text
    assert ("alice" in again.body, "stuck" in again.body) == (
        missing != "who",
        missing != "reason",
    )
    assert TOKEN not in again.body
    assert office.is_held()


def test_release_is_never_done_by_a_link(office: Office) -> None:
    """A GET with all fields asks."""
    office.hold()
    shown = office.form()["shown"][0]
    query = f"key=k&who=a&reason=b&token=a+token+of+these+tests&shown={shown}"

    assert "Release it, at this risk" in office.get(f"/release?{query}").text
    assert office.is_held()


def test_release_leaves_a_new_holder_alone(office: Office) -> None:
    """A client that acquired the lock meanwhile keeps it, and nothing is recorded."""
    lease = office.hold()
    form = office.form()
    office.service.release(lease)
    office.hold(pid=4712)

    refused = office.post(form)

    assert refused.status == 409
    assert "expired or has another holder: nothing was released" in refused.text
    assert office.is_held()
    assert forced_releases(office.service).found == []


def test_lock_of_clients_with_other_settings_is_not_released(office: Office) -> None:
    """As the command does: the page says what differs, and what to do."""
    office.hold()
    form = office.form()
    app = Celery("other", set_as_current=False)
    app.conf.update(office.app.conf.changes)
    app.conf.redlock_max_ttl = 120.0
    page = web.page(app, TOKEN)

    asked, done = office.get("/release?key=k", page=page), office.post(form, page=page)
    page.close()
    runtime_of(app).redlock.close()
    app.close()

    for answer in (asked, done):
        assert answer.status == 404
        assert "Nothing was released. The nodes are at epoch 1 with max" in answer.text
    assert office.is_held()


def test_release_without_a_shown_holder_does_nothing(office: Office) -> None:
    """A form with a token and a key alone releases nothing."""
    office.hold()

    assert office.post(office.form(shown=[])).status == 409
    assert office.is_held()


@pytest.mark.parametrize(
    "environ",
    [
        {"CONTENT_LENGTH": "1000000"},
        {"CONTENT_LENGTH": "x"},
        {"CONTENT_LENGTH": "-1"},
        {"CONTENT_LENGTH": ""},
    ],
    ids=["long", "no number", "negative", "missing"],
)
def test_release_by_a_form_of_a_wrong_length_is_refused(
    office: Office, environ: dict[str, str]
) -> None:
    """The fields are not read, so there is no token."""
    office.hold()
    form = office.form()
    page = web.page(office.app, TOKEN)

    assert unchecked_post(page, form, environ) == 403
    assert office.is_held()
    page.close()


def unchecked_post(page: Any, form: Any, environ: dict[str, str]) -> int:
    """Post a form whose headers a strict server would not let through."""
    data = urlencode(form, doseq=True).encode()
    given = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/release",
        "HTTP_HOST": HOST,
        "HTTP_ORIGIN": f"https://{HOST}",
        "wsgi.input": io.BytesIO(data),
        **environ,
    }
    statuses = []
    page(given, lambda status, _headers: statuses.append(int(status.split()[0])))
    return statuses[0]


@pytest.mark.parametrize("key", ["", "nothing", "a%0Ab"])
def test_release_of_no_lock_says_so(office: Office, key: str) -> None:
    """There is no form."""
    asked = office.get(f"/release?key={key}")

    assert asked.status == 404
    assert "<form" not in asked.body


def test_release_of_a_permit_leaves_the_others(office: Office) -> None:
    """The question names them."""
    limits = (Limit("imports", 2),)
    for _ in range(2):
        office.hold("imports", limits)

    form = office.form("imports")
    asked = office.get("/release?key=imports")
    office.post(form)

    assert "It is permit 1 of 2 of imports." in asked.text
    assert "one more than the limit may run at the same time" in asked.text
    assert "are in use, and stay: imports##2." in asked.text
    assert {name.rpartition(":")[2] for name in locks(office.nodes)} == {"imports##2"}


def test_release_of_a_permit_for_a_start_takes_no_lock(office: Office) -> None:
    """The page does not say so, either: the run goes on, and keeps its lock."""
    office.hold("mail", (Limit("mail", 1), Limit("mail", 1, 60.0)))

    asked = office.get("/release?key=mail@@1")

    assert "This releases mail@@1 , a permit for a start." in asked.text
    assert "from its holder" not in asked.text


def test_release_that_missed_a_majority_does_not_say_that_it_is_done(
    office: Office,
) -> None:
    """The lock may still be held, and the nodes that were not reached are named."""
    office.hold()
    form = office.form()
    for node in office.nodes.nodes[1:]:
        node.kill()

    done = office.post(form)

    assert "The lock k may still be held: too few nodes released it." in done.text
    assert done.text.count("stays there until its ttl has ended") == 2
    assert "Released k" not in done.text
