"""The release of a lock in Django's admin: confirmed first, and logged."""

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
    """Return user, key and message of the admin's log, the last entry first."""
    from django.contrib.admin.models import LogEntry  # noqa: PLC0415

    rows = LogEntry.objects.filter(content_type__model="heldlock")
    return list(rows.values_list("user__username", "object_id", "change_message"))


def confirmed(browser: Any, key: str) -> dict[str, Any]:
    """Return the fields of the form on the confirmation page."""
    page = browser.get(RELEASE, {"key": key}).content.decode()
    return {"key": key, "shown": re.findall(r'name="shown" value="(\w+)"', page)}


def test_release_needs_a_permission_of_its_own(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """Staff users without it see no link, and their requests are refused."""
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


def test_release_asks_and_states_the_risk(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """The page names the holder and the risk, and releases nothing."""
    hold(service, "k", worker())

    page = text_of(log_in(name, MAY).get(RELEASE, {"key": "k"}))

    assert "proj.send_invoice[id-of-it] on worker-1 (pid 4711)" in page
    assert "two may run at the same time" in page
    assert "on 3 of 3 nodes" in page
    assert len(locks(nodes, "k")) == 3


def test_holder_with_different_fences_is_named_once(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """A holder is one holder, though nodes have different fences for it."""
    hold(service, "k", worker())
    token, fence, *fields = nodes.nodes[0].command("GET", "redlock:lock:k").split("\n")
    other = "\n".join([token, str(int(fence) + 7), *fields])
    nodes.nodes[0].command("SET", "redlock:lock:k", other, "KEEPTTL")

    page = text_of(log_in(name, MAY).get(RELEASE, {"key": "k"}))

    assert page.count("on worker-1 (pid 4711)") == 1
    assert "on 3 of 3 nodes" in page


def test_release_that_is_confirmed_is_done_and_logged(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """All nodes delete the lock; the log has the user and the holder."""
    hold(service, "k/ü?&=", worker())
    browser = log_in(name, MAY)

    done = browser.post(RELEASE, confirmed(browser, "k/ü?&="), follow=True)

    fact = "on 3 of 3 nodes, held by proj.send_invoice[id-of-it] on worker-1 (pid 4711)"
    assert not locks(nodes, "k/")
    assert f"Released k/ü?&amp;= {fact}." in text_of(done)
    assert entries()[0] == (name, "k/ü?&=", f"Released {fact}.")


def test_release_leaves_a_new_holder_alone(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """A client that acquired the lock meanwhile keeps it, and nothing is logged."""
    lease = hold(service, "k", worker())
    browser = log_in(name, MAY)
    form = confirmed(browser, "k")
    service.release(lease)
    hold(service, "k", worker(pid=4712))

    done = browser.post(RELEASE, form, follow=True)

    assert "expired or has another holder: nothing was released" in text_of(done)
    assert len(locks(nodes, "k")) == 3
    assert name not in [who for who, *_ in entries()]


def test_release_without_a_shown_holder_does_nothing(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """A request with nothing but a key releases nothing."""
    hold(service, "k", worker())

    done = log_in(name, MAY).post(RELEASE, {"key": "k"}, follow=True)

    assert "nothing was released" in text_of(done)
    assert len(locks(nodes, "k")) == 3


def test_release_needs_the_csrf_token(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """A page of another site cannot release a lock."""
    from django.test import Client  # noqa: PLC0415  (Django is set up now)

    hold(service, "k", worker())
    browser = log_in(name, MAY)
    form = confirmed(browser, "k")
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = browser.cookies

    assert strict.post(RELEASE, form).status_code == 403
    assert len(locks(nodes, "k")) == 3


def test_release_of_a_free_lock_says_so(nodes: DevNodes, name: str) -> None:
    """It shows a message instead of the question."""
    done = log_in(name, MAY).get(RELEASE, {"key": "nothing"}, follow=True)

    assert "No node that answered has a lock for nothing" in text_of(done)


def test_release_names_nodes_that_keep_the_lock(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """A node that is down keeps the lock until its ttl ends, and the page says so."""
    hold(service, "k", worker())
    browser = log_in(name, MAY)
    form = confirmed(browser, "k")
    nodes.nodes[2].kill()

    done = text_of(browser.post(RELEASE, form, follow=True))

    assert "Released k on 2 of 3 nodes" in done
    assert "keeps the lock until its ttl has ended" in done
