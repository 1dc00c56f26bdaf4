"""Django's admin: the list of held locks, and their release, confirmed and logged."""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery
from django.core.management import call_command

from celery_redlock.app.runtime import runtime_of
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.lease import Holder, Lease
from celery_redlock.locks.limits import Limits
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.release import Operator, ask, release
from celery_redlock.records.forced_releases import forced_releases
from tests.contrib.office import log_in
from tests.contrib.storages import default_database, make_tables, use_django
from tests.harness.hostile import VALUES
from tests.nodes.support import PATIENT, client, locks, until

LIST = "/admin/celery_redlock/heldlock/"
RELEASE = f"{LIST}release/"
MAY = "release_heldlock"


class Site:
    """The site, and the lock service of a worker elsewhere."""

    def __init__(self, nodes: DevNodes, service: Redlock) -> None:
        self.nodes = nodes
        self.service = service
        self.name = f"user-{secrets.token_hex(4)}"

    def log_in(self, *permissions: str, **fields: Any) -> Any:
        """Return a browser in which the user has logged in."""
        return log_in(self.name, *permissions, **fields)

    def hold(
        self, key: str | list[str] = "k", pid: int = 4711, limits: Limits = ()
    ) -> Lease:
        """Take a lock as a task does, and return when all nodes have it."""
        task: Any = {"task": "proj.send_invoice", "task_id": "id-of-it"}
        holder = Holder("", host="worker-1", pid=pid, started=1_790_000_000.0, **task)
        lease = self.service.acquire(key, ttl=60.0, holder=holder, limits=limits)
        got = lease.key
        until(lambda: self.service.inspect(got).votes == 3, 5.0, what=f"{got} on all")
        return lease

    def is_held(self, key: str = "k") -> bool:
        """Tell whether all nodes have the lock; it is an error if only some have it."""
        found = len(locks(self.nodes, key))
        assert found in (0, 3)
        return found == 3


@pytest.fixture(scope="module")
def office(sqlite: str) -> Iterator[None]:
    """Give a Django site with an admin and a database."""
    alias = use_django(sqlite)
    make_tables(alias)
    with default_database(alias):
        call_command("migrate", verbosity=0, run_syncdb=True)
        yield


@pytest.fixture
def site(office: None, lend_nodes: Callable[..., DevNodes]) -> Iterator[Site]:
    """Give the site, with a Celery app that uses three nodes."""
    from django.test import override_settings  # noqa: PLC0415  (Django is set up now)

    nodes = lend_nodes(3)
    app = Celery("office", set_as_current=False)
    app.conf.redlock_nodes = nodes.urls
    app.conf.redlock_node_timeout = PATIENT
    with override_settings(REDLOCK_CELERY_APP=app), client(nodes) as redlock:
        redlock.check()  # connects to all nodes
        yield Site(nodes, redlock)
        runtime_of(app).redlock.close()
    app.close()


def text_of(response: Any) -> str:
    """Return the text of a page, without its tags."""
    page = response.content.decode()
    return " ".join(re.sub(r"(?s)<(style|script).*?</\1>|<[^>]*>", " ", page).split())


# -- the list ----------------------------------------------------------------------


def test_list_shows_the_holders_to_staff_users(site: Site) -> None:
    """Any staff user sees key, task, holder, fence and votes."""
    lease = site.hold("invoice:42")

    page = text_of(site.log_in().get(LIST))

    assert "invoice:42 proj.send_invoice id-of-it worker-1 pid 4711" in page
    assert f"{lease.fence} 3 of 3" in page
    assert "1 lock held, as seen on 3 of 3 nodes." in page


def test_list_of_many_holders_has_pages(site: Site) -> None:
    """The second hundred is one click away, and the search is kept."""
    for node in site.nodes.nodes:
        words = []
        for number in range(101):
            words += [f"redlock:lock:k:{number:03}", f"{number:032x}.{'0' * 16}\n1\n"]
        node.command("MSET", *words)

    browser = site.log_in()
    first = browser.get(f"{LIST}?q=k:*").content.decode()
    second = text_of(browser.get(f"{LIST}?q=k%3A%2A&page=2"))

    assert 'href="?q=k%3A%2A&amp;page=2"' in first
    assert "Rows 101 to 101 of 101" in second
    assert ("k:100" in second, "k:099" in second) == (True, False)


def test_page_never_shows_a_token(site: Site) -> None:
    """The token proves ownership, so neither page has it."""
    lease = site.hold("invoice:42")
    browser = site.log_in(MAY)

    pages = browser.get(LIST).content + browser.get(RELEASE + "?key=invoice:42").content

    assert b"invoice:42" in pages
    assert lease.token.partition(".")[0].encode() not in pages


def test_other_users_see_nothing(site: Site) -> None:
    """Both pages send them to the login."""
    browser = site.log_in(MAY, is_staff=False)

    assert [browser.get(url).status_code for url in (LIST, RELEASE)] == [302, 302]


def test_list_is_searched_by_a_pattern(site: Site) -> None:
    """The pattern is one of Redis."""
    site.hold("invoice:1")
    site.hold("report:1")

    page = text_of(site.log_in().get(LIST, {"q": "report:*"}))

    assert "report:1" in page
    assert "invoice:1" not in page


def test_list_names_nodes_that_did_not_answer(site: Site) -> None:
    """Without a majority it says that it cannot tell which locks are held."""
    for node in site.nodes.nodes[:2]:
        node.kill()

    page = text_of(site.log_in().get(LIST))

    assert "can tell which locks are held: 1 of 3 can, 2 are needed." in page
    assert page.count("Node 127.0.0.1") == 2
    assert "It cannot be told whether a lock is held." in page
    assert "No lock is held" not in page
    assert "It cannot be told whether there were releases by operators: too" in page


def test_list_says_how_the_settings_of_a_minority_differ(site: Site) -> None:
    """A majority can tell what is held. The difference and the remedy are shown."""
    node = site.nodes.nodes[0]
    config = node.command("HGET", "redlock:meta", "config")
    other = config.replace("max_ttl 60 s", "max_ttl 120 s")
    assert other != config, config
    node.command("HSET", "redlock:meta", "config", other)

    page = text_of(site.log_in().get(LIST))
    node.command("HSET", "redlock:meta", "config", config)

    assert "is set up differently" in page
    assert "with max_ttl 120 s; this client has max_ttl 60 s. Set redlock_m" in page
    assert "0 locks held, as seen on 2 of 3 nodes." in page


def test_admin_index_has_a_link_to_the_list_only(site: Site) -> None:
    """There is no link to add a lock: tasks take locks."""
    page = site.log_in().get("/admin/").content.decode()

    assert f'href="{LIST}"' in page
    assert f"{LIST}add" not in page


def test_site_without_nodes_says_so(site: Site) -> None:
    """A missing setting is a message on the page, not an error 500."""
    from django.test import override_settings  # noqa: PLC0415  (Django is set up now)

    with override_settings(REDLOCK_CELERY_APP=Celery("bare", set_as_current=False)):
        response = site.log_in().get(LIST)

    assert response.status_code == 200
    assert "set it to a list of URLs of independent Redis masters" in text_of(response)


def test_dumpdata_skips_locks(office: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands that read all models work without a table of locks."""
    call_command("dumpdata", "celery_redlock")
    call_command("dumpdata", "celery_redlock", use_base_manager=True)

    assert capsys.readouterr().out.split("\n") in (["[][]"], ["[]", "[]", ""])


# -- the release -------------------------------------------------------------------


def entries() -> list[tuple[str, str, str]]:
    """Return user, key and message of the admin's log, the last entry first."""
    from django.contrib.admin.models import LogEntry  # noqa: PLC0415

    rows = LogEntry.objects.filter(content_type__model="heldlock")
    return list(rows.values_list("user__username", "object_id", "change_message"))


def confirmed(browser: Any, key: str = "k") -> dict[str, Any]:
    """Return the fields of the form on the confirmation page."""
    page = browser.get(RELEASE, {"key": key}).content.decode()
    return {"key": key, "shown": re.findall(r'name="shown" value="(\w+)"', page)}


def test_release_needs_a_permission_of_its_own(site: Site) -> None:
    """Staff users without it see no link, and their requests are refused."""
    site.hold()
    browser = site.log_in("view_heldlock")

    page = browser.get(LIST).content.decode()
    refused = [send(RELEASE, {"key": "k"}) for send in (browser.get, browser.post)]

    assert RELEASE not in page
    assert [response.status_code for response in refused] == [403, 403]
    assert site.is_held()


def test_release_asks_and_states_the_risk(site: Site) -> None:
    """The page names the holder and the risk, and releases nothing."""
    site.hold()

    page = text_of(site.log_in(MAY).get(RELEASE, {"key": "k"}))

    assert "proj.send_invoice[id-of-it] on worker-1 (pid 4711)" in page
    assert "two may run at the same time" in page
    assert "on 3 of 3 nodes" in page
    assert site.is_held()


def test_key_that_turns_text_around_leaves_the_question_readable(site: Site) -> None:
    """A key may have a word of a user, with a sign for text from right to left."""
    key = "user:\u202eeve"
    site.hold(key)
    browser = site.log_in(MAY)

    page = browser.get(RELEASE, {"key": key})
    shown = text_of(page)

    assert "\u202e" not in shown
    assert "the lock user:·eve from its holder" in shown
    assert f'name="key" value="{key}"' in page.content.decode()


@pytest.mark.long
def test_holder_with_different_fences_is_named_once(site: Site) -> None:
    """A holder is one holder, though nodes have different fences for it."""
    site.hold()
    node = site.nodes.nodes[0]
    token, fence, *fields = node.command("GET", "redlock:lock:k").split("\n")
    other = "\n".join([token, str(int(fence) + 7), *fields])
    node.command("SET", "redlock:lock:k", other, "KEEPTTL")

    page = text_of(site.log_in(MAY).get(RELEASE, {"key": "k"}))

    assert page.count("on worker-1 (pid 4711)") == 1
    assert "on 3 of 3 nodes" in page


def test_release_that_is_confirmed_is_done_and_logged(site: Site) -> None:
    """All nodes delete the lock; the log has the user and the holder."""
    site.hold("k/ü?&=")
    browser = site.log_in(MAY)

    done = browser.post(RELEASE, confirmed(browser, "k/ü?&="), follow=True)

    fact = "on 3 of 3 nodes, held by proj.send_invoice[id-of-it] on worker-1 (pid 4711)"
    assert not site.is_held("k/")
    assert f"Released k/ü?&amp;= {fact}." in text_of(done)
    assert entries()[0] == (site.name, "k/ü?&=", f"Released {fact}.")


def test_pages_of_another_site_lead_to_that_site(site: Site) -> None:
    """A project may have an admin for its operators, beside the usual one."""
    site.hold()
    browser = site.log_in(MAY)
    ops = LIST.replace("/admin/", "/ops/")

    listed = browser.get(ops).content.decode()
    asked = browser.get(f"{ops}release/?key=k").content.decode()
    done = browser.post(f"{ops}release/", confirmed(browser, "k"))

    assert f'href="{ops}release/?key=k"' in listed
    assert '"/admin/' not in listed + asked
    assert done.headers["Location"] == ops


def test_release_leaves_a_new_holder_alone(site: Site) -> None:
    """A client that acquired the lock meanwhile keeps it, and nothing is logged."""
    lease = site.hold()
    browser = site.log_in(MAY)
    form = confirmed(browser)
    site.service.release(lease)
    site.hold(pid=4712)

    done = browser.post(RELEASE, form, follow=True)

    assert "expired or has another holder: nothing was released" in text_of(done)
    assert site.is_held()
    assert site.name not in [who for who, *_ in entries()]


def check(site: Site, browser: Any, value: bytes) -> None:
    """List, ask about and release a lock with this value, beside one of a task."""
    name = "redlock:lock:odd"
    for node in site.nodes.nodes:
        node.command("SET", name, value, "PX", 60_000)
        node.command("PEXPIRE", "redlock:lock:k", 60_000)

    listed = browser.get(LIST).content.decode()
    assert "?key=odd" in listed, value
    assert "?key=k" in listed
    asked = browser.get(RELEASE, {"key": "odd"}).content.decode()
    digests = re.findall(r'name="shown" value="([^"]*)"', asked)
    browser.post(RELEASE, {"key": "odd", "shown": digests, "reason": "odd"})
    assert [node.command("EXISTS", name) for node in site.nodes.nodes] == [0] * 3


@pytest.mark.long
def test_no_value_of_another_program_breaks_the_pages(site: Site) -> None:
    """The list has its key, beside those of tasks; a release asks, and deletes it."""
    site.hold()
    browser = site.log_in(MAY)
    for value in VALUES:
        check(site, browser, value)


def test_reason_of_a_release_is_cut_to_one_line(site: Site) -> None:
    """Nodes keep it for a month."""
    site.hold()
    reason = "because\x1b[2J\n" + "x" * 100_000

    browser = site.log_in(MAY)
    browser.post(RELEASE, {**confirmed(browser), "reason": reason})

    record = forced_releases(site.service).found[0]
    assert record.reason.startswith("because [2J xxx")
    assert len(record.reason) <= 600
    assert "\x1b" not in entries()[0][2]
    assert len(entries()[0][2]) < 1000


def test_release_of_a_lock_with_a_nul_is_logged(site: Site) -> None:
    """Nodes have NUL in their texts, and PostgreSQL has none."""
    key = "a\0b"
    holder = Holder("", task="job", task_id="c\0d", host="worker-1")
    site.service.carry_out(site.service.acquiring(key, 60.0, holder=holder))

    browser = site.log_in(MAY)
    browser.post(RELEASE, confirmed(browser, key))

    assert not site.is_held(key)
    who, named, message = entries()[0]
    assert (who, named) == (site.name, "a·b")
    assert "held by job[c·d] on worker-1" in message


def test_search_that_is_too_long_asks_no_node(site: Site) -> None:
    """The page says how long it may be, and does not repeat it."""
    site.hold()

    page = site.log_in().get(LIST, {"q": "a*" * 101}).content.decode()

    assert "The search has 202 characters, and may have 200 at most." in page
    assert "a*" * 101 not in page
    assert "?key=k" not in page


@pytest.mark.parametrize("method", ["get", "post"])
def test_key_that_no_lock_can_have_is_refused_in_few_words(
    site: Site, method: str
) -> None:
    """A staff user can send megabytes; no message keeps them."""
    browser = site.log_in(MAY)
    send = getattr(browser, method)

    done = send(RELEASE, {"key": "k" * 100_000, "shown": ["x"]}, follow=True)

    assert "A key of 100,000 bytes is too long" in text_of(done)
    assert len(text_of(done)) < 5_000
    assert b"k" * 10_000 not in done.content


def test_release_needs_the_csrf_token(site: Site) -> None:
    """A page of another site cannot release a lock."""
    from django.test import Client  # noqa: PLC0415  (Django is set up now)

    site.hold()
    browser = site.log_in(MAY)
    form = confirmed(browser)
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = browser.cookies

    assert strict.post(RELEASE, form).status_code == 403
    assert site.is_held()


def test_release_of_a_free_lock_says_so(site: Site) -> None:
    """It shows a message instead of the question."""
    done = site.log_in(MAY).get(RELEASE, {"key": "nothing"}, follow=True)

    assert "No node that answered has a lock for nothing" in text_of(done)


def test_release_is_listed_with_its_reason(site: Site) -> None:
    """The list of releases is on the nodes, so it has those of the command, too."""
    site.hold()
    browser = site.log_in(MAY)
    browser.post(RELEASE, {**confirmed(browser), "reason": "stuck <b>"}, follow=True)
    site.hold("elsewhere")
    asked = ask(site.service, "elsewhere")
    by = Operator("alice", "celery redlock release", "leaks", host="web-9")
    release(site.service, asked, asked.values, by)
    site.hold()

    everything, one = browser.get(LIST), browser.get(RELEASE, {"key": "k"})

    page = text_of(everything)
    assert page.index("leaks") < page.index("stuck")  # the latest first
    assert "alice web-9, celery redlock release leaks proj.send_invoice" in page
    assert f"{site.name} {socket.gethostname()}, the Django admin stuck" in page
    assert b"stuck &lt;b&gt;" in everything.content
    assert "stuck" in text_of(one)
    assert "leaks" not in text_of(one)
    assert "Reason: stuck <b>" in entries()[0][2]


# -- records of calls --------------------------------------------------------------


def test_records_of_calls_can_be_searched_and_not_changed(site: Site) -> None:
    """A search finds a whole task id, or a part of the key; no page has a form."""
    from celery_redlock.contrib.django.models import CallRecord  # noqa: PLC0415

    now = datetime.now(timezone.utc)
    facts = {"task": "proj.pay", "state": "SUCCESS", "result": "[1]", "fence": 7}
    facts |= {"content_type": "application/json", "content_encoding": "utf-8"}
    for number in range(2):
        record: dict[str, Any] = {
            "id": f"{site.name}-{number}",
            "task_id": f"call-{site.name}-{number}",
        }
        record |= {"key": f"'invoice:{number}'", "recorded_at": now, "keep_until": now}
        CallRecord.objects.create(**facts, **record)
    records = "/admin/celery_redlock/callrecord/"
    browser = site.log_in("view_callrecord")

    found = text_of(browser.get(records, {"q": f"call-{site.name}-1"}))
    page = browser.get(f"{records}{site.name}-0/change/")

    assert f"call-{site.name}-1" in found
    assert f"call-{site.name}-0" not in found
    assert "invoice:1" in text_of(browser.get(records, {"q": "invoice:1"}))
    assert "[1]" in text_of(page)
    assert 'name="_save"' not in page.content.decode()
    refused = [f"{records}add/", f"{records}{site.name}-0/delete/"]
    assert [browser.get(url).status_code for url in refused] == [403, 403]
    CallRecord.objects.all().delete()
