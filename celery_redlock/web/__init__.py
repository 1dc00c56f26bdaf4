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

from celery_redlock.web import parts, server
from celery_redlock.web.site import LockPage

__all__ = ["LockPage", "page", "parts", "server"]

page = LockPage
