"""The list of held locks in Django's admin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import Celery

from tests.contrib.admin.support import LIST, MAY, RELEASE, hold, text_of, worker
from tests.contrib.office import log_in

if TYPE_CHECKING:
    import pytest

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes


def test_list_shows_the_holders_to_staff_users(service: Redlock, name: str) -> None:
    """Any staff user sees key, task, holder, fence and votes."""
    lease = hold(service, "invoice:42", worker())

    page = text_of(log_in(name).get(LIST))

    assert "invoice:42 proj.send_invoice id-of-it worker-1 pid 4711" in page
    assert f"{lease.fence} 3 of 3" in page
    assert "1 held, as seen on 3 of 3 nodes." in page


def test_page_never_shows_a_token(service: Redlock, name: str) -> None:
    """The token proves ownership, so neither page has it."""
    lease = hold(service, "invoice:42", worker())
    browser = log_in(name, MAY)

    pages = browser.get(LIST).content + browser.get(RELEASE + "?key=invoice:42").content

    assert b"invoice:42" in pages
    assert lease.token.partition(".")[0].encode() not in pages


def test_other_users_see_nothing(nodes: DevNodes, name: str) -> None:
    """Both pages send them to the login."""
    browser = log_in(name, MAY, is_staff=False)

    assert [browser.get(url).status_code for url in (LIST, RELEASE)] == [302, 302]


def test_list_is_searched_by_a_pattern(service: Redlock, name: str) -> None:
    """The pattern is one of Redis."""
    hold(service, "invoice:1")
    hold(service, "report:1")

    page = text_of(log_in(name).get(LIST, {"q": "report:*"}))

    assert "report:1" in page
    assert "invoice:1" not in page


def test_list_names_nodes_that_did_not_answer(
    service: Redlock, nodes: DevNodes, name: str
) -> None:
    """Without a majority it says that it cannot tell which locks are held."""
    nodes.nodes[0].kill()
    nodes.nodes[1].kill()

    page = text_of(log_in(name).get(LIST))

    assert "Too few nodes answered to tell which locks are held: 2 are needed." in page
    assert page.count("Node 127.0.0.1") == 2


def test_admin_index_has_a_link_to_the_list_only(nodes: DevNodes, name: str) -> None:
    """There is no link to add a lock: tasks take locks."""
    page = log_in(name).get("/admin/").content.decode()

    assert f'href="{LIST}"' in page
    assert f"{LIST}add" not in page


def test_site_without_nodes_says_so(office: None, name: str) -> None:
    """A missing setting is a message on the page, not an error 500."""
    from django.test import override_settings  # noqa: PLC0415  (Django is set up now)

    with override_settings(REDLOCK_CELERY_APP=Celery("bare", set_as_current=False)):
        response = log_in(name).get(LIST)

    assert response.status_code == 200
    assert "set it to a list of URLs of independent Redis masters" in text_of(response)


def test_dumpdata_skips_locks(office: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands that read all models work without a table of locks."""
    from django.core.management import call_command  # noqa: PLC0415

    call_command("dumpdata", "celery_redlock")
    call_command("dumpdata", "celery_redlock", use_base_manager=True)

    assert capsys.readouterr().out == "[][]"
