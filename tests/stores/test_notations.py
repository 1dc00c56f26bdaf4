"""The ways to write where a store is, and what is said about wrong ones."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from celery_redlock.basics.secret import mask_url
from celery_redlock.errors import ConfigurationError
from celery_redlock.locks.redlock import Redlock
from celery_redlock.wire.url import parse_node
from tests.harness.programs import end_of
from tests.nodes.support import ROOT, run_python

SECRET = "s e'c/r@t"
STORES = "celery_redlock.stores"
DJANGO = f"""
import sys
import types

from django.core.exceptions import AppRegistryNotReady
from django.conf import settings
from celery_redlock.wire.url import parse_node
from celery_redlock.errors import ConfigurationError

early = types.ModuleType("early.base")
sys.modules |= {{"early": types.ModuleType("early"), "early.base": early}}


def needs_models(_):
    raise AppRegistryNotReady("Apps aren't loaded yet.")


early.__getattr__ = needs_models
settings.configure(DATABASES={{
    "default": {{
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "app",
        "USER": "me",
        "PASSWORD": {SECRET!r},
        "HOST": "db",
        "PORT": 6432,
        "OPTIONS": {{"sslmode": "require", "pool": True}},
    }},
    "other": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    "early": {{"ENGINE": "early", "HOST": "db", "NAME": "tenants"}},
}})
node = parse_node("django://default")
print(node.name)
print(node.url.reveal())
print(parse_node("django://early").name)
for alias in ("other", "third"):
    try:
        parse_node("django://" + alias)
    except ConfigurationError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("keywords", "name"),
    [
        ("host=db dbname=app user=me", "db:5432/app"),
        (r"host=db port=6432 dbname=app password='s e\'c/r@t'", "db:6432/app"),
        ("dbname=app host=/run/postgresql", "/run/postgresql:5432/app"),
        ("host=a,b port=1,2 dbname=app sslmode=require", "a:1+b:2/app"),
        ("user=me", "localhost:5432/me"),
        ("hostaddr=10.9.8.7 dbname=app", "10.9.8.7:5432/app"),
        ("host=db hostaddr=10.9.8.7 dbname=app", "db:5432/app"),
    ],
)
def test_keywords_become_a_url_that_says_the_same(keywords: str, name: str) -> None:
    """All that the keywords say is in the URL, and the name has no credentials."""
    node = parse_node(keywords)
    assert node.name == name
    assert conninfo_to_dict(node.url.reveal()) == conninfo_to_dict(keywords)
    assert "e'c" not in repr(node) + mask_url(keywords)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://b,a/app", "a:5432+b:5432/app"),
        ("postgresql://a,b/app", "a:5432+b:5432/app"),
        ("postgresql://b:6,a/app", "a:5432+b:6/app"),
        ("postgresql://a,b:6/app", "a:5432+b:6/app"),
        ("host=b,a port=6 dbname=app", "a:6+b:6/app"),
    ],
)
def test_order_of_hosts_makes_no_other_deployment(url: str, name: str) -> None:
    """It says which one a client tries first. A host without a port has the default."""
    assert parse_node(url).name == name


def test_ports_that_belong_to_no_host_are_refused() -> None:
    """As the driver would, when it connects."""
    with pytest.raises(ConfigurationError, match="as many ports as hosts"):
        parse_node("host=a,b port=1,2,3 dbname=app")


def test_keywords_that_cannot_be_read_are_refused_without_them() -> None:
    """The error does not repeat the text, which may hold a password."""
    with pytest.raises(ConfigurationError, match="keywords and values") as caught:
        parse_node(f"host=db password={SECRET}")
    assert "e'c" not in str(caught.value)


def test_connection_of_django_is_a_node() -> None:
    """``django://default`` is the database of the project; others are refused."""
    name, url, early, *refusals = run_python(DJANGO)
    assert name == "db:6432/app"
    assert early == "db:5432/tenants"  # its engine can be imported after setup() only
    assert conninfo_to_dict(url) == {
        "dbname": "app",
        "user": "me",
        "password": SECRET,
        "host": "db",
        "port": "6432",
        "sslmode": "require",
    }
    assert "DATABASES['other'] is no PostgreSQL" in refusals[0]
    assert "DATABASES has no 'third'; there is default, early, other" in refusals[1]


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (["mysql://u:secret@db/app"], r"mysql://\*\*\*@db/app is not a Redis URL"),
        (["postgresql://db/app", "redis://a"], "A store decides alone"),
        (["postgresql://db/app", "etcd://a"], "A store decides alone"),
        (["postgresql://u:secret@db:x/app"], "cannot be used: its port must be a num"),
        (["postgresql://u:secret@db:65536/app"], "cannot be used: its port must be"),
        (["postgresql://u:secret@[db/app"], "it is no URL of PostgreSQL"),
        (["postgresql://u:secret@db/app?ssl_mode=on"], "option; the nearest.* sslmode"),
        (["host=db pasword=secret"], "such option; the nearest one is password"),
        (["host=db qqq=secret"], "it is no text of keywords and values"),
        (["postgresql://u:secret@db/app?options=-c x=y"], "%20 for a blank"),
        (["etcd://u:secret@a:x"], "write the servers as host:port,host:port"),
        (["etcd://u:secret@a:65536"], "write the servers as host:port,host:port"),
        (["etcd://"], "host:port,host:port"),
        (["etcd://u:secret@a:2379,"], "host:port,host:port"),
        (["etcd://u:secret@a:2379/shop"], "has no path"),
        (["zookeeper://u:secret@a:x"], "write the servers as host:port,host:port"),
        (["zookeeper://"], "host:port,host:port"),
        (["zookeeper://u:secret@a:2181,"], "host:port,host:port"),
        (["zookeeper://u:secret@a?ca=/ca.pem"], "there are no options, and no TLS"),
        (["etcds://u:secret@a?tls=1"], "there is no option tls; there are ca, cert"),
        (["etcds://u:secret@a?ca=/none"], "file of its option ca cannot be read"),
        (["etcd://u:secret@a?ca=/dev/null"], "its certificates need etcds://"),
        (["etcds://u:secret@a?cert=/dev/null"], "cert and key are needed together"),
    ],
)
def test_wrong_nodes_are_refused_with_the_remedy(nodes: list[str], said: str) -> None:
    """One clear error, before anything is connected to, without a password."""
    with pytest.raises(ConfigurationError, match=said) as caught:
        Redlock(nodes)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["etcd", "zookeeper"])
def test_blanks_between_servers_are_no_part_of_a_host(scheme: str) -> None:
    """Whether a port follows or not."""
    assert (
        parse_node(f"{scheme}://b:1, a:1 , c").name
        == parse_node(f"{scheme}://a:1,b:1,c").name
    )


def test_address_of_a_postgresql_is_its_host() -> None:
    """Where its URL has no host, which libpq would have to resolve."""
    assert parse_node("postgresql:///app?hostaddr=10.9.8.7").hosts == ["10.9.8.7"]


@pytest.mark.parametrize("scheme", ["etcd", "zookeeper"])
def test_address_of_ipv6_is_a_host_without_its_brackets(scheme: str) -> None:
    """So it can be resolved; its name, with the port, has them."""
    node = parse_node(f"{scheme}://[::1]:1,[fd00::2]:1")

    assert node.hosts == ["::1", "fd00::2"]
    assert node.name == "[::1]:1+[fd00::2]:1"


@pytest.mark.parametrize(
    ("scheme", "password"),
    [
        *itertools.product(
            ["postgresql", "etcd", "zookeeper"], ["12/secret", "12#secret", "a@secret"]
        ),
        *(("etcd", "1?secret"), ("zookeeper", "1?secret")),
    ],
)
@pytest.mark.parametrize("name", ["", "mine"])
def test_password_that_is_not_quoted_is_refused(
    scheme: str, password: str, name: str
) -> None:
    """Its end would be a part of the host, and so of the name, which logs show."""
    url = f"{scheme}://me:{password}@host:1"
    with pytest.raises(ConfigurationError) as caught:
        Redlock([{"url": url, "name": name} if name else url])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://me:a%40b%2Fc@db/app", "db:5432/app"),
        ("postgresql://me:1?b@db/app", "db:5432/app"),
        ("postgresql://db/app?user=me@corp&password=a@b", "db:5432/app"),
        ("etcd://me:a%40b%2Fc@a,b", "a:2379+b:2379"),
        ("zookeeper://me:a%40b%2Fc@a,b/root", "a:2181+b:2181/root"),
        ("zookeeper://a,b/ro%40t", "a:2181+b:2181/ro@t"),
        ("etcd://user:word@b:2380,a", "a:2379+b:2380"),
        ("zookeeper://user:word@b:2180,a/apps/shop/", "a:2181+b:2180/apps/shop"),
    ],
)
def test_password_that_is_quoted_is_in_no_name(url: str, name: str) -> None:
    """The driver reads some passwords as they are, and takes options for them."""
    assert parse_node(url).name == name


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [
        ("postgresql://db/app", "psycopg", "postgresql"),
        ("host=db", "psycopg", "postgresql"),
        ("zookeeper://a", "kazoo.client", "zookeeper"),
    ],
)
def test_missing_driver_names_the_extra(
    url: str, driver: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the driver the error says what to install."""
    monkeypatch.setitem(sys.modules, driver, None)
    for name in [name for name in sys.modules if name.startswith(f"{STORES}.{extra}")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigurationError, match=rf"celery-redlock\[{extra}\]"):
        Redlock([url])


@pytest.mark.long
def test_demo_without_a_driver_names_the_extra() -> None:
    """The square brackets of the command survive the colors of the demo."""
    program = (
        "import sys; sys.modules['lupa'] = None\n"
        "sys.argv[1:] = ['--store', 'etcd']\n"
        "from demo.__main__ import main; sys.exit(main())"
    )
    done = end_of(sys.executable, "-c", program, code=1, cwd=ROOT)
    assert "celery-redlock[etcd]" in done.stdout


def test_files_of_certificates_are_read(tmp_path: Path) -> None:
    """A URL with certificates has the name that it has without them."""
    file = tmp_path / "ca.pem"
    file.touch()
    assert parse_node(f"etcds://a,b?ca={file}").name == "a:2379+b:2379"
