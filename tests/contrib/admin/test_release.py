"""Locks in Django's admin: who may release one is asked first, and is on record."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.contrib.admin.support import LIST, MAY, RELEASE, hold, text_of, worker
from tests.contrib.office import log_in
from tests.nodes.support import locks

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes


def entries() -> list[tuple[str, str, str]]:
    """Return who has done what in the admin's log, the last first."""
    from django.contrib.admin.models import LogEntry  # noqa: PLC0415

    rows = LogEntry.objects.filter(content_type__model="heldlock")
    return list(rows.values_list("user__username", "object_id", "change_message"))


def confirmed(browser: Any, key: str) -> dict[str, Any]:
    """Return what the form on the page that asks would send."""
    page = browser.get(RELEASE, {"key": key}).content.decode()
    return {"key": key, "shown": re.findall(r'name="shown" value="(\w+)"', page)}


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
