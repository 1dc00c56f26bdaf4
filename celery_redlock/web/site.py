"""The page of locks as a WSGI application: its addresses and rules of access.

A release needs the token, in a form that this page has sent: a request of another site
is refused (``Origin``, ``Sec-Fetch-Site``), and there is no cookie that it could use. A
link on another site may open the page, and do nothing else.
The page allows no script, style or frame of another site. It contains no token, neither
its own nor that of a lock, and no password.

All viewers share one snapshot of the nodes per second.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.command import COMMAND
from celery_redlock.basics.text import printable, printable_line
from celery_redlock.errors import ConfigurationError, RedlockError
from celery_redlock.locks.forced_release import MOST_FIELD
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.inspect import node_status
from celery_redlock.operations.release import Operator, ask_for_page, release
from celery_redlock.operations.scan import Scan, scan
from celery_redlock.operations.words import (
    held_text,
    instant,
    unknown_text,
    votes_text,
)
from celery_redlock.records.forced_releases import Releases, forced_releases
from celery_redlock.web import parts
from celery_redlock.web.guesses import Guesses
from celery_redlock.web.html import Html, join, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

log = logging.getLogger(__name__)

_LEAST_TOKEN = 16  # characters
_EVERY = 2.0  # seconds between two refreshes of the page
_SHARED_FOR = 1.0  # seconds for which viewers share one snapshot of the nodes
_MOST_BYTES = 1 << 16  # of a form
_MOST_FIELDS = 100
_MOST_LETTERS = 200  # of a name and of a reason
_TOOL = "celery redlock web"
_FILES = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_TEXT, _HTML = "text/plain; charset=utf-8", "text/html; charset=utf-8"
_POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Frame-Options", "DENY"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "same-origin"),  # without a referrer, browsers hide the origin
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_NO_METRICS = (
    "There are no metrics: prometheus_client is not installed. Install it with "
    "`pip install 'celery-redlock[prometheus]'`.\n"
)
_READ_ONLY = (
    "This page is read-only: it was started without a token. "
    f"`{COMMAND} release` "
    "releases a lock."
)


@dataclass(frozen=True)
class _Request:
    """A request, as far as the page reads it."""

    environ: dict[str, Any]

    @property
    def root(self) -> str:
        """The path at which the page is mounted, without a slash at its end."""
        return quote(_decoded(self.environ.get("SCRIPT_NAME", ""))).rstrip("/")

    @property
    def path(self) -> str:
        """The path below the root."""
        return _decoded(self.environ.get("PATH_INFO", ""))

    @property
    def method(self) -> str:
        """GET, HEAD, POST or another one."""
        return str(self.environ.get("REQUEST_METHOD", "GET"))

    @property
    def host(self) -> str:
        """The name and port to which the browser has sent the request."""
        return str(self.environ.get("HTTP_HOST", "")).lower()

    @property
    def query(self) -> dict[str, list[str]]:
        """The fields after the question mark."""
        return _fields(self.environ.get("QUERY_STRING", ""))

    def form(self) -> dict[str, list[str]]:
        """Read the fields of the form. Of a form that is too long, none are read."""
        try:
            length = int(self.environ.get("CONTENT_LENGTH") or 0)
        except ValueError:
            return {}
        if not 0 < length <= _MOST_BYTES:
            return {}
        return _fields(self.environ["wsgi.input"].read(length).decode(errors="replace"))

    def is_same_origin(self) -> bool:
        """Tell whether a page of this host has sent the request."""
        site = self.environ.get("HTTP_SEC_FETCH_SITE", "same-origin")
        origin = self.environ.get("HTTP_ORIGIN") or self.environ.get("HTTP_REFERER", "")
        return site == "same-origin" and self.host == _host_of(str(origin)) != ""

    def may_be_read(self) -> bool:
        """Tell whether a user or a page of this host has asked, or followed a link.

        Another site could ask without its user noticing, and keep the nodes busy.
        """
        site = self.environ.get("HTTP_SEC_FETCH_SITE", "none")
        mode = self.environ.get("HTTP_SEC_FETCH_MODE", "navigate")
        kind = self.environ.get("HTTP_SEC_FETCH_DEST", "document")
        is_link = mode == "navigate" and kind == "document"
        return site in ("same-origin", "none") or is_link


class _Response(NamedTuple):
    """A response; the headers of `_HEADERS` are added."""

    body: str | bytes
    kind: str = _HTML
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("Cache-Control", "no-store"),)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The answers of the nodes at one moment."""

    seen: Scan
    releases: Releases
    at: float  # by the wall clock
    until: float  # by the monotonic clock: so long viewers share it


class LockPage:
    """The page of locks: a WSGI application. Many threads may call it at once.

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

    def __init__(
        self,
        app_or_redlock: Any,
        token: str | None = None,
        *,
        hosts: Iterable[str] | None = None,
    ) -> None:
        if token is not None and len(token) < _LEAST_TOKEN:
            raise ConfigurationError(
                f"The token of the page of locks has {len(token)} characters, and "
                f"needs {_LEAST_TOKEN} at least: it could be guessed. Make one with "
                '`python -c "import secrets; print(secrets.token_urlsafe())"`.'
            )
        is_service = isinstance(app_or_redlock, Redlock)
        self._service: Redlock | None = app_or_redlock if is_service else None
        self._app = None if is_service else app_or_redlock
        self._token = token
        self._hosts = None
        if hosts is not None:  # one of them may have a port, or be an IPv6 address
            self._hosts = {_name_of(host) or host.lower() for host in hosts}
        self._mutex = threading.Lock()
        self._snapshot: _Snapshot | None = None
        self._guesses = Guesses()
        self._metrics: Any = None
        with suppress(ImportError):
            from celery_redlock.metrics import StateCollector  # noqa: PLC0415  (an extra)

            self._metrics = StateCollector(self._app, self._service, counts_locks=True)

    @property
    def may_release(self) -> bool:
        """Whether a reader with the token can release locks."""
        return self._token is not None

    def close(self) -> None:
        """Close the connections of the metrics. The next request opens them again."""
        if self._metrics is not None:
            self._metrics.close()

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer a request, as WSGI describes it."""
        request = _Request(environ)
        try:
            response = self._answer(request)
        except Exception:
            path = printable(request.path)[:_MOST_LETTERS]
            log.exception("The page %r failed.", path)
            fact = "The page failed: its log says why.\n"
            response = _Response(fact, _TEXT, HTTPStatus.INTERNAL_SERVER_ERROR)
        body = response.body
        data = body.encode() if isinstance(body, str) else body
        status = HTTPStatus(response.status)
        headers = [("Content-Type", response.kind), ("Content-Length", str(len(data)))]
        start_response(
            f"{status.value} {status.phrase}", [*headers, *response.headers, *_HEADERS]
        )
        return [b"" if request.method == "HEAD" else data]

    # -- addresses -------------------------------------------------------------------

    def _answer(self, request: _Request) -> _Response:
        # A health check uses the address of a container, and gets a status alone.
        if request.path != "/healthz" and not self._is_known(request):
            fact = f"This page does not answer under the name {request.host}.\n"
            return _Response(fact, _TEXT, HTTPStatus.MISDIRECTED_REQUEST)
        if request.method in ("GET", "HEAD") and not request.may_be_read():
            fact = "Another site has sent this request: nothing was done.\n"
            return _Response(fact, _TEXT, HTTPStatus.FORBIDDEN)
        if not request.path and request.root:
            to = (("Location", f"{request.root}/"),)
            return _Response("", _TEXT, HTTPStatus.PERMANENT_REDIRECT, to)
        path = request.path or "/"
        views = {
            "/": self._list,
            "/release": self._release,
            "/healthz": self._health,
            "/metrics": self._scrape,
            **{f"/{name}": _file_view(name) for name in _FILES},
        }
        view = views.get(path)
        if view is None:
            return _Response("There is no such page.\n", _TEXT, HTTPStatus.NOT_FOUND)
        allowed = ["GET", "HEAD", *(["POST"] if path == "/release" else [])]
        if request.method not in allowed:
            headers = (("Allow", ", ".join(allowed)),)
            fact = "This method is not possible here.\n"
            return _Response(fact, _TEXT, HTTPStatus.METHOD_NOT_ALLOWED, headers)
        return view(request)

    def _is_known(self, request: _Request) -> bool:
        """Tell whether the page may answer under this name.

        A site of an attacker could lead its own name to this page, and then read it.
        """
        return self._hosts is None or _name_of(request.host) in self._hosts

    def _health(self, request: _Request) -> _Response:
        try:
            nodes = node_status(self._redlock())
            votes = len(nodes.voting)
            has_quorum = votes >= nodes.quorum
            fact = "ok" if has_quorum else "No lock can be granted"
            fact += f": {votes_text(votes, len(nodes), nodes.quorum)}."
        except RedlockError as error:
            has_quorum, fact = False, str(error)
        status = HTTPStatus.OK if has_quorum else HTTPStatus.SERVICE_UNAVAILABLE
        told = fact if self._is_known(request) else status.phrase
        return _Response(f"{told}\n", _TEXT, status)

    def _scrape(self, request: _Request) -> _Response:
        if self._metrics is None:
            return _Response(_NO_METRICS, _TEXT, HTTPStatus.NOT_FOUND)
        from prometheus_client import make_wsgi_app  # noqa: PLC0415  (an extra)

        from celery_redlock.metrics import scraped  # noqa: PLC0415  (an extra)

        told: list[Any] = []
        scrape = make_wsgi_app(scraped(self._app, self._metrics))
        body = b"".join(scrape(request.environ, lambda *head: told.extend(head)))
        status, headers = int(told[0].split()[0]), dict(told[1])
        kind = headers.pop("Content-Type", _TEXT)
        return _Response(body, kind, status, (*headers.items(),))

    def _list(self, request: _Request) -> _Response:
        fields = request.query
        pattern, everything = _one(fields, "q").strip(), "all" in fields
        if fact := parts.search_refusal(pattern):
            body = _card("Locks", tag("p", fact, class_="errornote"))
            return self._page(request, "Locks", body, HTTPStatus.BAD_REQUEST)
        try:
            snapshot = self._look(pattern or "*")
        except RedlockError as error:
            body = _card("Locks", tag("p", str(error), class_="errornote"))
            return self._page(request, "Locks", body, HTTPStatus.SERVICE_UNAVAILABLE)
        style = self._style(request)
        nodes = len(snapshot.seen.nodes)
        releases = parts.release_list(snapshot.releases, nodes, style)
        query = {"q": pattern} if pattern else {}
        query |= {
            name: _one(fields, name) for name in ("all", "page") if name in fields
        }
        body = join(
            tag(
                "div",
                _verdict(snapshot.seen),
                _note(unknown_text(snapshot.seen), "error"),
                _note(snapshot.seen.nodes.settings, "warning"),
                id="state",
                data_live=True,
            ),
            tag(
                "div",
                _card("Nodes", parts.node_table(snapshot.seen)),
                _card("Limits", limits)
                if (limits := parts.limit_list(snapshot.seen))
                else None,
                id="nodes-and-limits",
                class_="columns",
                data_live=True,
            ),
            tag(
                "section",
                tag("h2", "Held locks"),
                _search(request, pattern, everything=everything),
                tag(
                    "div",
                    parts.lock_list(snapshot.seen, style, query, f"{request.root}/"),
                    id="locks",
                    data_live=True,
                ),
                class_="card",
            ),
            tag(
                "div",
                _card("Latest releases by operators", releases) if releases else None,
                id="releases",
                data_live=True,
            ),
        )
        return self._page(request, "Locks", body, foot=self._foot(snapshot))

    def _release(self, request: _Request) -> _Response:
        # A server may reset a connection with a form that nothing has read.
        form = request.form() if request.method == "POST" else {}
        if self._token is None:
            return self._refuse(request, _READ_ONLY)
        if request.method == "POST":
            return self._carry_out(request, form, self._token)
        return self._ask(request, _one(request.query, "key"))

    # -- releases --------------------------------------------------------------------

    def _ask(
        self,
        request: _Request,
        key: str,
        *,
        missing: str = "",
        typed: Mapping[str, str] | None = None,
    ) -> _Response:
        """Ask before a release: show the holders, the risk, and a form."""
        try:
            asked = ask_for_page(self._redlock(), key)
        except RedlockError as error:
            return self._refuse(request, str(error), HTTPStatus.NOT_FOUND)
        typed = typed or {}
        user = _user_of(request)
        hidden = [("key", key)]
        hidden += [("shown", one) for one in asked.digests()]
        body = _card(
            "Release a lock?",
            join(
                _note(missing, "error"),
                parts.question(asked, self._style(request)),
                tag(
                    "form",
                    *(tag("input", type="hidden", name=n, value=v) for n, v in hidden),
                    None
                    if user
                    else _field(
                        "Your name", "who", typed.get("who", ""), autocomplete="name"
                    ),
                    _field("Reason", "reason", typed.get("reason", ""), rows=3),
                    _field(
                        "Token",
                        "token",
                        "",
                        type="password",
                        maxlength=None,
                        autocomplete="current-password",
                    ),
                    tag(
                        "div",
                        tag("button", "Release it, at this risk", class_="danger"),
                        tag("a", "No, leave it", href=f"{request.root}/"),
                        class_="row",
                    ),
                    method="post",
                    action=f"{request.root}/release",
                    class_="release",
                ),
            ),
        )
        status = HTTPStatus.BAD_REQUEST if missing else HTTPStatus.OK
        return self._page(request, "Release a lock?", body, status)

    def _carry_out(
        self, request: _Request, form: Mapping[str, list[str]], token: str
    ) -> _Response:
        """Release a lock, if the request and its token are right."""
        if not request.is_same_origin():
            why = "The request came from another site: nothing was released."
            return self._refuse(request, why)
        key, given = _one(form, "key"), _one(form, "token")
        if refusal := self._compare(request, key, given, token):
            return refusal
        who = _user_of(request) or _line(_one(form, "who"))
        reason = _line(_one(form, "reason"))
        if not (who and reason):
            missing = "Say who you are, and why the lock is released."
            typed = {"who": who, "reason": reason}
            return self._ask(request, key, missing=missing, typed=typed)
        try:
            asked = ask_for_page(self._redlock(), key)
        except RedlockError as error:
            return self._refuse(request, str(error), HTTPStatus.NOT_FOUND)
        try:
            values = asked.confirmed(form.get("shown", []))
        except RedlockError as error:
            return self._refuse(request, str(error), HTTPStatus.CONFLICT)
        host = str(request.environ.get("REMOTE_ADDR", ""))
        operator = Operator(who, _TOOL, reason, host=host)
        done = release(self._redlock(), asked, values, operator)
        log.warning("%s released the lock %r%s", operator.who, key, done.fact)
        with self._mutex:
            self._snapshot = None
        body = _card(
            "Release of a lock",
            join(
                *(_note(text, level) for level, text in done.messages),
                tag("p", tag("a", "Back to the locks", href=f"{request.root}/")),
            ),
        )
        return self._page(request, "Release of a lock", body)

    def _compare(
        self, request: _Request, key: str, given: str, token: str
    ) -> _Response | None:
        """Return why this token releases nothing; None if it is the right one."""
        where = printable(str(request.environ.get("REMOTE_ADDR", "")))
        if left := self._guesses.take(where):
            log.warning("%s has sent too many wrong tokens.", where)
            why = (
                "Too many tokens were wrong: this one was not compared, and nothing "
                f"was released. Try again in {math.ceil(left)} s, or use "
                f"`{COMMAND} release`."
            )
            return self._refuse(request, why, HTTPStatus.TOO_MANY_REQUESTS)
        if not hmac.compare_digest(given.encode(), token.encode()):
            log.warning("%s sent a wrong token to release the lock %.200r.", where, key)
            return self._refuse(request, "The token is wrong: nothing was released.")
        self._guesses.give_back(where)
        return None

    # -- parts of pages --------------------------------------------------------------

    def _redlock(self) -> Redlock:
        """Return the lock service; of an app, a wrong setting is an error."""
        return self._service or runtime_of(self._app).redlock

    def _look(self, pattern: str) -> _Snapshot:
        """Return the snapshot that viewers share, or a new one if it is too old."""
        redlock = self._redlock()
        with self._mutex:
            known, now = self._snapshot, SYSTEM_CLOCK.monotonic()
            if known and known.seen.pattern == pattern and now < known.until:
                return known
            seen, releases = scan(redlock, pattern), forced_releases(redlock)
            at, until = SYSTEM_CLOCK.wall(), SYSTEM_CLOCK.monotonic() + _SHARED_FOR
            self._snapshot = _Snapshot(seen, releases, at, until)
            return self._snapshot

    def _style(self, request: _Request) -> parts.PageStyle:
        if not self.may_release:
            return parts.PageStyle()
        head = f"{request.root}/release?"
        return parts.PageStyle(lambda key: head + urlencode({"key": key}))

    def _foot(self, snapshot: _Snapshot) -> str:
        rule = "A release needs the token." if self.may_release else "Read-only."
        return f"As seen at {instant(snapshot.at)}. {rule}"

    def _refuse(
        self, request: _Request, why: str, status: int = HTTPStatus.FORBIDDEN
    ) -> _Response:
        back = tag("p", tag("a", "Back to the locks", href=f"{request.root}/"))
        body = _card("Release of a lock", join(_note(why, "error"), back))
        return self._page(request, "Release of a lock", body, status)

    def _page(
        self,
        request: _Request,
        title: str,
        body: Html,
        status: int = HTTPStatus.OK,
        *,
        foot: str = "",
    ) -> _Response:
        name = getattr(self._app, "main", "") or ""
        whole = f"{title} – {name}" if name else title
        refreshes = bool(foot)
        links = {file: f"{request.root}/{file}?v={_version(file)}" for file in _FILES}
        again = tag("meta", http_equiv="refresh", content="5")
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag(
                "meta",
                name="viewport",
                content="width=device-width, initial-scale=1",
            ),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", whole),
            tag("link", rel="icon", href=links["icon.svg"], type="image/svg+xml"),
            tag("link", rel="stylesheet", href=links["page.css"]),
            tag("script", src=links["page.js"], type="module") if refreshes else None,
            tag("noscript", again) if refreshes else None,
        )
        top = tag(
            "header",
            tag("a", "Locks", href=f"{request.root}/", class_="brand"),
            tag("span", name, class_="faint") if name else None,
            tag("button", "Pause", id="pause", type="button", hidden=True)
            if refreshes
            else None,
            class_="top",
        )
        main = tag(
            "main",
            tag("h1", title, class_="visually-hidden"),
            tag("p", id="stale", class_="note error", role="status", hidden=True),
            body,
            tag("p", foot, id="foot", class_="faint", data_live=True) if foot else None,
            data_every=f"{_EVERY:g}",
        )
        page = tag("html", head, tag("body", top, main), lang="en")
        return _Response(f"<!doctype html>\n{page}\n", status=status)


def _verdict(seen: Scan) -> Html:
    """Say whether locks can be granted."""
    found = seen.nodes
    votes, nodes, quorum = len(found.voting), len(found), found.quorum
    if votes < quorum:
        fact = votes_text(votes, nodes, quorum)
        text, mood = f"No lock can be granted: {fact}.", "bad"
    elif votes < nodes:
        fact = votes_text(votes, nodes)
        text, mood = f"Locks are granted: {fact}, {quorum} are enough.", "warning"
    else:
        text = "The node votes." if nodes == 1 else f"All {nodes} nodes vote."
        mood = "good"
    if found.most_can_tell:
        text = f"{held_text(seen)}. {text}"
    return tag("p", text, id="verdict", class_=f"verdict {mood}", role="status")


def _search(request: _Request, pattern: str, *, everything: bool) -> Html:
    return tag(
        "form",
        tag("label", "Key", for_="q"),
        tag(
            "input",
            type="search",
            name="q",
            id="q",
            value=pattern,
            placeholder="*",
            maxlength=parts.MOST_SEARCHED,
        ),
        tag("input", type="hidden", name="all", value="1") if everything else None,
        tag("button", "Search"),
        method="get",
        action=f"{request.root}/",
        role="search",
        class_="row",
    )


def _card(title: str, *inside: Any) -> Html:
    return tag("section", tag("h2", title), *inside, class_="card")


def _note(text: object, level: str) -> Html | None:
    return tag("p", text, class_=f"note {level}", role="status") if text else None


def _field(label: str, name: str, value: str, **attributes: Any) -> Html:
    more = {"maxlength": _MOST_LETTERS, "autocomplete": "off", **attributes}
    more |= {"name": name, "id": name, "required": True}
    if "rows" in more:
        entry = tag("textarea", value, **more)
    else:
        entry = tag("input", value=value, **{"type": "text", **more})
    return tag("div", tag("label", label, for_=name), entry, class_="field")


# -- requests ----------------------------------------------------------------------


def _decoded(text: str) -> str:
    """Return a path, which WSGI hands over byte by byte."""
    return text.encode("latin-1", "replace").decode(errors="replace")


def _fields(text: str) -> dict[str, list[str]]:
    try:
        return parse_qs(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:  # too many fields
        return {}


def _one(fields: Mapping[str, list[str]], name: str) -> str:
    return fields.get(name, [""])[0]


def _line(text: str) -> str:
    """Return what a user typed as one line that can be printed."""
    return printable_line(text, MOST_FIELD)[:_MOST_LETTERS]


def _user_of(request: _Request) -> str:
    """Return the user that the server has authenticated, or ""."""
    return _line(str(request.environ.get("REMOTE_USER") or ""))


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _name_of(host: str) -> str:
    """Return a host without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


# -- files -------------------------------------------------------------------------


@cache
def _content(name: str) -> bytes:
    return (Path(__file__).parent / "static" / name).read_bytes()


@cache
def _version(name: str) -> str:
    return hashlib.sha256(_content(name)).hexdigest()[:12]


def _file_view(name: str) -> Callable[[_Request], _Response]:
    kept = (("Cache-Control", "public, max-age=86400"),)  # its address has the version
    kind = f"{_FILES[name]}; charset=utf-8"
    return lambda _: _Response(_content(name), kind, headers=kept)
