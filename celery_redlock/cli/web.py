"""``web``: a page of the locks, in a browser."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import click

from celery_redlock.cli.output.format import painted, plural
from celery_redlock.cli.output.session import USAGE, Command, Failure, Session
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
    help="Another name of the page, if a proxy is in front of it. Can be repeated.",
)
@click.option(
    "--expose", is_flag=True, help="Allow a --host that other machines can reach."
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

    There is no login and no encryption, so the page listens on this machine only. For
    others, put a proxy with both in front of it, and name it with --name; or call
    `celery_redlock.web.page(app)` in a WSGI server.
    """
    nodes = plural(len(session.redlock.labels), "node")
    is_own = _check_host(host, expose=expose, releases=bool(token))
    known = [*_OWN_NAMES, host, *names] if is_own or names else None
    application = page(session.app, token or None, hosts=known)
    # A service manager ends a service by SIGTERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server = LockServer(application, host, port)
    except (OSError, OverflowError) as error:
        why = f"Port {port} of {host} cannot be used: {error}. Nothing is served."
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


def _check_host(host: str, *, expose: bool, releases: bool) -> bool:
    """Tell whether the address is of this machine only. Another one needs a flag."""
    try:
        is_own = is_loopback(host)
    except OSError as error:
        raise Failure(f"The host {host} is unknown: {error}.", USAGE) from error
    if is_own or expose:
        return is_own
    risk = "All who can reach it could read the names of keys, tasks and hosts"
    if releases:
        risk += ", and the token would be sent without encryption"
    raise Failure(
        f"Other machines can reach {host}. {risk}. Nothing is served. Put a proxy with "
        "a login and encryption in front of 127.0.0.1; or, if the network is trusted, "
        "add --expose.",
        USAGE,
    )


def _lines(url: str, nodes: str, application: LockPage) -> list[str]:
    rule = "A release needs the token." if application.may_release else "Read-only."
    return [
        f"The locks on {nodes} are shown at {url} {rule}",
        "",
        painted("Press Ctrl-C to stop.", "faint"),
    ]
