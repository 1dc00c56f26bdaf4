"""``web``: a page of the locks, in a browser."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

import click

from celery_redlock.basics.text import printable
from celery_redlock.cli.output.ink import painted
from celery_redlock.cli.output.session import USAGE, Command, Failure, Session
from celery_redlock.operations.words import plural
from celery_redlock.web import page
from celery_redlock.web.server import LockServer, is_loopback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.web import LockPage

_OWN_NAMES = ("127.0.0.1", "::1", "localhost")


@click.command(cls=Command, short_help="Serve a page of the locks.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on."
)
@click.option(
    "--port", default=5556, show_default=True, help="Port; 0 for one that is free."
)
@click.option(
    "--token",
    envvar="REDLOCK_WEB_TOKEN",
    help="Allow releases with this token; or set REDLOCK_WEB_TOKEN.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="Another name of the page: that of a proxy, or with --expose. Can be "
    "repeated.",
)
@click.option(
    "--expose",
    is_flag=True,
    help="Allow a --host that other machines can reach. Needs --name.",
)
@click.pass_obj
def web(  # noqa: PLR0913  (click gives each option by name)
    session: Session,
    *,
    host: str,
    port: int,
    token: str | None,
    names: Sequence[str],
    expose: bool,
) -> None:
    """Serve a page of the locks, until Ctrl-C.

    The page shows the held locks with their holders, the nodes and their votes, limits
    and releases by operators. It refreshes by itself. With `--token`, a lock can be
    released there: it asks for a name, a reason and the token.

    /healthz answers 200 if a majority of the nodes votes, and 503 if not. /metrics has
    the metrics for Prometheus, if prometheus_client is installed.

    Each request leaves a line on stderr, unless it is a health check, a scrape or a
    part of the page that is answered with 200. So does each wrong token, release and
    error.

    There is no login and no encryption, so the page listens on this machine only. For
    others, put a proxy with both in front of it, and name it with --name; or call
    `celery_redlock.web.page(app)` in a WSGI server.
    """
    nodes = plural(len(session.redlock.labels), "node")
    _check_host(host, names, expose=expose, releases=bool(token))
    application = page(
        session.loaded_app, token or None, hosts=[*_OWN_NAMES, host, *names]
    )
    _log_to_stderr()
    # A service manager ends a service by SIGTERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server = LockServer(application, host, port)
    except (OSError, OverflowError) as error:
        fact = str(error).rstrip(".")
        why = f"Port {port} of {host} cannot be used: {fact}. Nothing is served."
        raise Failure(why, USAGE) from error
    document = {"url": server.url, "releases": application.may_release}
    try:
        session.tell(_lines(server.url, nodes, application), lambda: document)
        server.serve_forever()
    except KeyboardInterrupt:
        session.say("", "The page is no longer served.")
    finally:
        server.server_close()
        application.close()


class _Lines(logging.Formatter):
    """A formatter whose lines cannot control a terminal, or look like other lines."""

    def format(self, record: logging.LogRecord) -> str:
        first, *others = super().format(record).split("\n")
        return "\n    ".join(map(printable, (first, *others)))


def _log_to_stderr() -> None:
    """Log requests, releases and errors of the page."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("celery_redlock.web")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _check_host(
    host: str, names: Sequence[str], *, expose: bool, releases: bool
) -> None:
    """Refuse an address that other machines can reach, without a flag and a name."""
    try:
        is_own = is_loopback(host)
    except (OSError, UnicodeError) as error:  # a label that is empty or too long
        raise Failure(f"The host {host} is unknown: {error}.", USAGE) from error
    if is_own or (expose and names):
        return
    if expose:
        raise Failure(
            f"Other machines can reach {host}, and the page must know its name there: "
            "otherwise a site of an attacker can give its own name to the page, and "
            "read it. Nothing is served. Add --name with the name or address by which "
            "browsers reach the page.",
            USAGE,
        )
    risk = "All who can reach it could read the names of keys, tasks and hosts"
    if releases:
        risk += ", and the token would be sent without encryption"
    raise Failure(
        f"Other machines can reach {host}. {risk}. Nothing is served. Put a proxy with "
        "a login and encryption in front of 127.0.0.1; or, if the network is trusted, "
        "add --expose, and --name with the name of the page there.",
        USAGE,
    )


def _lines(url: str, nodes: str, application: LockPage) -> list[str]:
    rule = "A release needs the token." if application.may_release else "Read-only."
    return [
        f"The locks on {nodes} are shown at {url} {rule}",
        "",
        painted("Press Ctrl-C to stop.", "faint"),
    ]
