"""A page of the locks, and the state of the nodes, without Django.

``celery -A proj redlock web`` serves the page. It is a WSGI application, so that any
other WSGI server can serve it, too::

    from celery_redlock import web

    locks = web.page(app)

=============  =======================================================================
address        content
=============  =======================================================================
``/``          the locks that are held, the nodes, limits, and releases by operators
``/release``   the question before a release, and the release
``/healthz``   200 if a majority of the nodes votes, else 503, with one line of text
``/metrics``   the metrics for Prometheus, if prometheus_client is installed
=============  =======================================================================

Read in this order: ``html`` (a text is escaped, unless it is HTML), ``parts`` (the
tables and sentences, which the Django admin shows, too), ``site`` (the application:
addresses, rules of access, headers), ``guesses`` (wrong tokens), ``server`` (threads
that serve it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.web import parts, server
from celery_redlock.web.site import LockPage

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LockPage", "page", "parts", "server"]


def page(
    app_or_redlock: Any,
    token: str | None = None,
    *,
    hosts: Iterable[str] | None = None,
) -> LockPage:
    """Return the page of locks: a WSGI application.

    The page has no login. All clients that reach it can see the names of keys, tasks,
    hosts and nodes. Passwords are never shown.

    Args:
        app_or_redlock: The Celery app; or a ``Redlock``, of which ``/metrics`` shows
            the nodes only.
        token: The token that a release needs, 16 characters at least. Without a token,
            the page is read-only.
        hosts: The names under which browsers reach the page, at any port. The page
            refuses requests for other names. None: all names.

    Raises:
        ConfigurationError: The token is too short.
    """
    return LockPage(app_or_redlock, token, hosts=hosts)
