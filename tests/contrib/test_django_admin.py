"""Locks in Django's admin: the staff looks, and who may release is asked first."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from celery_redlock.core.lease import Holder
from celery_redlock.runtime import runtime_of
from tests.contrib.office import log_in, open_office
from tests.contrib.storages import make_tables, use_django
from tests.nodes.support import PATIENT, client, locks, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes

LIST, RELEASE = (
    "/admin/celery_redlock/heldlock/",
    "/admin/celery_redlock/heldlock/release/",
)
MAY = "release_heldlock"


@pytest.fixture(scope="module")
def office(sqlite: str) -> None:
    """Give a Django site with an admin and a database."""
    alias = use_django(sqlite)
    make_tables(alias)
    open_office(alias)


@pytest.fixture
def name() -> str:
    """Give a user name that nobody has."""
    return f"user-{secrets.token_hex(4)}"


@pytest.fixture
def nodes(office: None, three_nodes: DevNodes) -> Iterator[DevNodes]:
    """Give three nodes that the site's Celery app locks on."""
    from django.test import override_settings  # noqa: PLC0415  (Django is set up now)

    app = Celery("office", set_as_current=False)
    app.conf.redlock_nodes = three_nodes.urls
    app.conf.redlock_node_timeout = PATIENT
    with override_settings(REDLOCK_CELERY_APP=app):
        yield three_nodes
        runtime_of(app).redlock.close()
    app.close()


@pytest.fixture
def service(nodes: DevNodes) -> Iterator[Redlock]:
    """Give a lock service for a worker that is somewhere else."""
    with client(nodes) as redlock:
        redlock.check()  # connects to all nodes
        yield redlock


def worker(pid: int = 4711) -> Holder:
    """Return the facts of a task that runs in a worker."""
    return Holder(
        "",
        task="proj.send_invoice",
        task_id="id-of-it",
        host="worker-1",
        pid=pid,
        started=1_790_000_000.0,
    )


def hold(service: Redlock, key: str, facts: Holder | None = None) -> Lease:
    """Take a lock, and return when all nodes have it: a majority is quicker."""
    lease = service.acquire(key, ttl=60.0, facts=facts)
    until(
        lambda: service.inspect(key).votes == len(service.labels),
        5.0,
        what=f"{key} on all nodes",
    )
    return lease


def text_of(response: Any) -> str:
    """Return what a page says, without its tags."""
    page = re.sub(
        r"(?s)<(style|script).*?</\1>|<[^>]*>", " ", response.content.decode()
    )
    return " ".join(page.split())


def entries() -> list[tuple[str, str, str]]:
    """Return who has done what in the admin's log, the last first."""
    from django.contrib.admin.models import LogEntry  # noqa: PLC0415

    rows = LogEntry.objects.filter(content_type__model="heldlock")
    return list(rows.values_list("user__username", "object_id", "change_message"))


# -- Looking -----------------------------------------------------------------------


def test_staff_sees_who_holds_what(service: Redlock, name: str) -> None:
    """Any member of the staff sees key, task, holder, fence and votes."""
    lease = hold(service, "invoice:42", worker())

    page = text_of(log_in(name).get(LIST))

    assert "invoice:42 proj.send_invoice id-of-it worker-1 pid 4711" in page
    assert f"{lease.fence} 3 of 3" in page
    assert "1 held, as seen on 3 of 3 nodes." in page


def test_page_never_shows_a_token(service: Redlock, name: str) -> None:
    """The token proves ownership: neither page has it."""
    lease = hold(service, "invoice:42", worker())
    browser = log_in(name, MAY)

    pages = browser.get(LIST).content + browser.get(RELEASE + "?key=invoice:42").content

    assert b"invoice:42" in pages
    assert lease.token.partition(".")[0].encode() not in pages


def test_people_outside_of_the_staff_see_nothing(nodes: DevNodes, name: str) -> None:
    """They are sent to the log-in, from both pages."""
    browser = log_in(name, MAY, is_staff=False)

    assert [browser.get(url).status_code for url in (LIST, RELEASE)] == [302, 302]


def test_list_is_searched_by_a_pattern(service: Redlock, name: str) -> None:
    """A pattern picks keys as it does in Redis."""
    hold(service, "invoice:1")
    hold(service, "report:1")

    page = text_of(log_in(name).get(LIST, {"q": "report:*"}))

    assert "report:1" in page
    assert "invoice:1" not in page


def test_list_names_nodes_that_were_not_seen(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """Without a majority it does not claim to know what is held."""
    nodes.nodes[0].kill()
    nodes.nodes[1].kill()

    page = text_of(log_in(name).get(LIST))

    assert "Too few nodes were seen to tell what is held: 2 are needed." in page
    assert page.count("Not seen: 127.0.0.1") == 2


def test_admin_index_offers_the_list_and_nothing_to_add(
    nodes: DevNodes, name: str
) -> None:
    """Locks are taken by tasks: there is a link to look, and none to add."""
    page = log_in(name).get("/admin/").content.decode()

    assert f'href="{LIST}"' in page
    assert f"{LIST}add" not in page


def test_site_without_nodes_says_so(office: None, name: str) -> None:
    """A setting that is missing is a message on the page, not an error 500."""
    from django.test import override_settings  # noqa: PLC0415  (Django is set up now)

    with override_settings(REDLOCK_CELERY_APP=Celery("bare", set_as_current=False)):
        response = log_in(name).get(LIST)

    assert response.status_code == 200
    assert "set it to a list of URLs of independent Redis masters" in text_of(response)


def test_dumpdata_passes_over_locks(
    office: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model has no table, and nothing that walks all models stumbles over it."""
    from django.core.management import call_command  # noqa: PLC0415

    call_command("dumpdata", "celery_redlock")
    call_command("dumpdata", "celery_redlock", use_base_manager=True)

    assert capsys.readouterr().out == "[][]"


# -- Releasing ---------------------------------------------------------------------


def test_release_takes_a_permission_of_its_own(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """Staff who may not release see no link, and are refused if they try."""
    hold(service, "k", worker())
    browser = log_in(name, "view_heldlock")

    page = browser.get(LIST).content.decode()
    refused = [
        browser.get(RELEASE, {"key": "k"}).status_code,
        browser.post(RELEASE, {"key": "k"}).status_code,
    ]

    assert RELEASE not in page
    assert refused == [403, 403]
    assert len(locks(nodes, "k")) == 3


def test_release_asks_and_says_what_it_risks(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """The page names the holder and the risk, and to look at it does nothing."""
    hold(service, "k", worker())

    page = text_of(log_in(name, MAY).get(RELEASE, {"key": "k"}))

    assert "proj.send_invoice[id-of-it] on worker-1 (pid 4711)" in page
    assert "two may run at the same time" in page
    assert "on 3 of 3 nodes" in page
    assert len(locks(nodes, "k")) == 3


def test_holder_is_named_once_whatever_fences_nodes_count(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """Nodes may have fences of their own for a lock: it is one holder all the same."""
    hold(service, "k", worker())
    token, fence, *facts = nodes.nodes[0].command("GET", "redlock:lock:k").split("\n")
    other = "\n".join([token, str(int(fence) + 7), *facts])
    nodes.nodes[0].command("SET", "redlock:lock:k", other, "KEEPTTL")

    page = text_of(log_in(name, MAY).get(RELEASE, {"key": "k"}))

    assert page.count("on worker-1 (pid 4711)") == 1
    assert "on 3 of 3 nodes" in page


def confirmed(browser: Any, key: str) -> dict[str, Any]:
    """Return what the form on the page that asks would send."""
    page = browser.get(RELEASE, {"key": key}).content.decode()
    return {"key": key, "shown": re.findall(r'name="shown" value="(\w+)"', page)}


def test_release_that_is_confirmed_is_done_and_logged(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """The lock is gone from all nodes; the log says who took it from whom."""
    hold(service, "k/ü?&=", worker())
    browser = log_in(name, MAY)

    done = browser.post(RELEASE, confirmed(browser, "k/ü?&="), follow=True)

    fact = "on 3 of 3 nodes, held by proj.send_invoice[id-of-it] on worker-1 (pid 4711)"
    assert not locks(nodes, "k/")
    assert f"Released k/ü?&amp;= {fact}." in text_of(done)
    assert entries()[0] == (name, "k/ü?&=", f"Released {fact}.")


def test_release_spares_whoever_has_it_by_then(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """A lock that changed hands after it was shown is left alone, and none logged."""
    lease = hold(service, "k", worker())
    browser = log_in(name, MAY)
    form = confirmed(browser, "k")
    service.release(lease)
    hold(service, "k", worker(pid=4712))

    done = browser.post(RELEASE, form, follow=True)

    assert "changed hands or ended: nothing was released" in text_of(done)
    assert len(locks(nodes, "k")) == 3
    assert name not in [who for who, *_ in entries()]


def test_release_that_nobody_was_shown_does_nothing(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """A request with a key alone, from a script or an old page, releases nothing."""
    hold(service, "k", worker())

    done = log_in(name, MAY).post(RELEASE, {"key": "k"}, follow=True)

    assert "nothing was released" in text_of(done)
    assert len(locks(nodes, "k")) == 3


def test_release_wants_the_token_of_the_form(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """A page of another site cannot have a lock released (CSRF)."""
    from django.test import Client  # noqa: PLC0415  (Django is set up now)

    hold(service, "k", worker())
    browser = log_in(name, MAY)
    form = confirmed(browser, "k")
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = browser.cookies

    assert strict.post(RELEASE, form).status_code == 403
    assert len(locks(nodes, "k")) == 3


def test_release_of_what_nobody_holds_says_so(nodes: DevNodes, name: str) -> None:
    """There is nothing to ask about."""
    done = log_in(name, MAY).get(RELEASE, {"key": "nothing"}, follow=True)

    assert "Nobody holds nothing" in text_of(done)


def test_release_names_nodes_that_keep_it(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """A node that is away keeps its part until the ttl has ended, and that is said."""
    hold(service, "k", worker())
    browser = log_in(name, MAY)
    form = confirmed(browser, "k")
    nodes.nodes[2].kill()

    done = text_of(browser.post(RELEASE, form, follow=True))

    assert "Released k on 2 of 3 nodes" in done
    assert "stays there until its ttl has ended" in done
