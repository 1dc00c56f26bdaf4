"""Where a PostgreSQL is: as a URL, in libpq's keywords, or as a connection of Django.

=========================================  =======================================
``postgresql://user:password@host/app``    a URL, with libpq's options after ``?``
``host=db dbname=app user=app``            libpq's keywords
``django://default``                       ``DATABASES["default"]`` of the project
=========================================  =======================================

The second and the third become the first. Source: section "Connection Strings" of
https://www.postgresql.org/docs/current/libpq-connect.html
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from psycopg import Error, pq
from psycopg.conninfo import conninfo_to_dict

from celery_redlock.basics.spelling import nearest
from celery_redlock.basics.text import is_port

if TYPE_CHECKING:
    from collections.abc import Mapping

_DJANGO = "django://"
_SEARCH_PATH = re.compile(r"search[_-]path\s*=\s*((?:\\.|\S)+)")
_NO_OPTION = re.compile(r'invalid (?:URI query parameter:|connection option) "(.*)"')
_PORT = 5432
# What Django calls otherwise than libpq.
_OF_DJANGO = {
    "NAME": "dbname",
    "USER": "user",
    "PASSWORD": "password",
    "HOST": "host",
    "PORT": "port",
}


def name_of(url: str) -> str:
    """Return ``host:port/database``, without credentials.

    Of several hosts, sorted, with a plus between: their order only says which one is
    tried first. A search_path in the URL follows: it decides which table is used, as
    the database does.

    Raises:
        ValueError: It is no URL of PostgreSQL. The text does not show it.
    """
    try:
        parts: dict[str, Any] = conninfo_to_dict(url)
    except Error as error:
        raise ValueError(
            _nearest_option(str(error))
            or "it is no URL of PostgreSQL; in its parts, write %20 for a blank, %3D "
            "for =, %40 for @ and %2F for /"
        ) from None
    servers = sorted(map(":".join, _servers_in(parts)))
    database = parts.get("dbname") or parts.get("user") or "postgres"
    place = f"{'+'.join(servers)}/{database}"
    if path := re.sub(r"[^\w,]+", "", search_path_of(url)):
        place += f"/{path}"
    return place.replace(",", "+")


def _nearest_option(refusal: str) -> str:
    """Return that libpq has no such option, with the nearest one; ``""`` without one.

    The name that it refuses may be a part of a password, so the text does not show it.
    """
    found = _NO_OPTION.search(refusal)
    known = {one.keyword.decode() for one in pq.Conninfo.get_defaults()}
    near = nearest(found[1], sorted(known)) if found else ""
    return f"libpq has no such option; the nearest one is {near}" if near else ""


def search_path_of(url: str) -> str:
    """Return the search_path in a URL; ``""`` for the default of the server."""
    found = _SEARCH_PATH.search(str(conninfo_to_dict(url).get("options") or ""))
    return found[1] if found else ""


def hosts_of(url: str) -> list[str]:
    """Return the hosts; none for a unix socket."""
    hosts = (host for host, _ in _servers_in(conninfo_to_dict(url)))
    return [host for host in hosts if not host.startswith("/")]


def _servers_in(parts: Mapping[str, Any]) -> list[tuple[str, str]]:
    text = parts.get("host") or parts.get("hostaddr") or "localhost"
    hosts = str(text).split(",")
    ports = [one or str(_PORT) for one in str(parts.get("port") or "").split(",")]
    if not all(map(is_port, ports)):
        raise ValueError("its port must be a number")
    if len(ports) == 1:
        ports *= len(hosts)
    if len(ports) != len(hosts):
        raise ValueError("write one port, or as many ports as hosts")
    return list(zip(hosts, ports, strict=True))


def url_of(spec: str) -> str:
    """Return the URL for a text of keywords, or for a connection of Django.

    Raises:
        ValueError: The text cannot be read, or Django has no such PostgreSQL. The error
            does not show the text.
    """
    if spec.startswith(_DJANGO):
        return _from(_in_django(spec.removeprefix(_DJANGO)))
    try:
        return _from(conninfo_to_dict(spec))
    except Error as error:
        hint = _nearest_option(str(error))
        raise ValueError(hint or "it is no text of keywords and values") from None


def _in_django(alias: str) -> dict[str, Any]:
    """Return the keywords of a connection of the Django project."""
    try:
        from django.core.exceptions import (  # noqa: PLC0415  (only where asked for)
            AppRegistryNotReady,
            ImproperlyConfigured,
        )
        from django.db import connections  # noqa: PLC0415
    except ImportError:
        raise ValueError("Django is not installed") from None
    try:
        aliases = connections.settings
    except ImproperlyConfigured:
        raise ValueError(
            "Django has no settings in this process; set DJANGO_SETTINGS_MODULE"
        ) from None
    if alias not in aliases:
        known = ", ".join(sorted(aliases))
        raise ValueError(f"DATABASES has no {alias!r}; there is {known}")
    # Engines that import models, as that of django-tenants, cannot be asked so early.
    with suppress(AppRegistryNotReady):
        if connections[alias].vendor != "postgresql":
            raise ValueError(f"DATABASES[{alias!r}] is no PostgreSQL")
    settings = aliases[alias]
    known_to_libpq = {one.keyword.decode() for one in pq.Conninfo.get_defaults()}
    options = settings.get("OPTIONS") or {}
    parts = {name: value for name, value in options.items() if name in known_to_libpq}
    return parts | {
        keyword: settings[name]
        for name, keyword in _OF_DJANGO.items()
        if settings.get(name)
    }


def _from(parts: Mapping[str, Any]) -> str:
    """Return the URL for keywords and their values.

    What cannot stand before the question mark, such as several hosts, stands after it.
    """
    rest = {name: str(value) for name, value in parts.items() if value is not None}
    user, password = rest.pop("user", ""), rest.pop("password", "")
    place = ""
    if re.fullmatch(r"[\w.-]+", rest.get("host", "")):
        place = rest.pop("host")
        if port := rest.pop("port", ""):
            place += f":{port}"
    login = quote(user, safe="")
    if password:
        login += f":{quote(password, safe='')}"
    if login:
        login += "@"
    database = quote(rest.pop("dbname", ""), safe="")
    options = f"?{urlencode(rest, quote_via=quote)}" if rest else ""
    return f"postgresql://{login}{place}/{database}{options}"
