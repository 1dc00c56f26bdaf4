"""The address of a node: names without secrets, and errors with a remedy."""

from __future__ import annotations

import pickle
import re
from collections import UserString
from collections.abc import Callable
from typing import Any

import pytest
from django.utils.functional import lazystr
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from celery_redlock.basics.secret import SecretUrl, mask_url
from celery_redlock.errors import ConfigurationError
from celery_redlock.locks.redlock import Redlock
from celery_redlock.wire.url import NodeAddress, parse_node, parse_nodes

SECRET = "s3cr3t"


# -- options ---------------------------------------------------------------------


def refusal_of(url: str) -> str:
    """Return why a URL is refused, or ``""``."""
    try:
        parse_node(url)
    except ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("redis://a?socket_timout=3", "Did you mean 'socket_timeout'?"),
        ("unix:///run/redis.sock?sockt_timeout=3", "Did you mean 'socket_timeout'?"),
        ("rediss://a?ssl_ca_cert=ca.pem", "Did you mean 'ssl_ca_certs'?"),
        ("redis://a?ssl_ca_certs=ca.pem", "Write rediss:// for TLS."),
    ],
)
def test_misspelled_option_is_refused_with_the_nearest_one(
    url: str, remedy: str
) -> None:
    """As an option of a task is, or a setting."""
    option = url.partition("?")[2].partition("=")[0]

    assert refusal_of(url).endswith(f"there is no option {option!r}. {remedy}")


def test_option_that_is_like_no_other_is_refused_with_those_that_work() -> None:
    """Each of them can be used."""
    named = refusal_of("rediss://a?colour=red").partition("There are ")[2]

    names = re.findall(r"'(\w+)'", named)
    assert {"socket_timeout", "ssl_certfile"} <= set(names)
    told = [refusal_of(f"rediss://a?{name}=1") for name in names]
    assert [one for one in told if "there is no option" in one] == []


# -- names -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://a", "a:6379/0"),
        ("redis://a:6380", "a:6380/0"),
        ("redis://a:6380/", "a:6380/0"),
        ("redis://a:6380/3", "a:6380/3"),
        ("redis://a:6380?db=2", "a:6380/2"),
        ("rediss://a:6380/1", "a:6380/1"),
        ("redis://[::1]:6380/1", "::1:6380/1"),
        (f"redis://:{SECRET}@a:1/0", "a:1/0"),
        (f"redis://user:{SECRET}@a:1/0", "a:1/0"),
        ("unix:///run/redis.sock", "/run/redis.sock/0"),
        (f"unix://user:{SECRET}@/run/redis.sock?db=4", "/run/redis.sock/4"),
    ],
)
def test_name_has_no_scheme_and_no_credentials(url: str, name: str) -> None:
    """Clients with other credentials, or with TLS, agree on these names."""
    assert parse_node(url).name == name


@pytest.mark.parametrize(
    "url",
    [
        *("redis://a", "redis://a:6380/3", f"rediss://:{SECRET}@a"),
        *("unix:///run/redis.sock", "postgresql://db/app", "etcd://a:2379,b:2379"),
    ],
)
def test_space_around_a_url_is_no_part_of_it(url: str) -> None:
    """It comes from ``"redis://a, redis://b".split(",")``, and from a file's last line.

    As a part of the host or the database, it would be the name of another node.
    """
    node = parse_node(url)

    assert parse_node(f" {url}") == parse_node(f"{url}\n") == node
    assert parse_node({"url": f"\t{url} "}) == node
    assert parse_node(f" {url} ").url.reveal() == url


def test_name_can_be_given() -> None:
    """Clients that reach a node under different addresses agree on its name."""
    node = parse_node({"url": f"redis://:{SECRET}@10.0.0.1:1/0", "name": "north"})

    assert node.name == str(node) == "north"


def test_parsed_address_is_kept() -> None:
    """An address is not parsed again."""
    node = parse_node("redis://a")

    assert parse_node(node) is node


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("redis://a:6380/3", "a:6380"),
        ("rediss://a:6380/5", "a:6380"),
        ("unix:///run/redis.sock?db=4", "/run/redis.sock"),
    ],
)
def test_server_has_no_database(url: str, server: str) -> None:
    """Two databases of one server fail together."""
    assert parse_node({"url": url, "name": "named"}).server == server


# -- connections -----------------------------------------------------------------


def test_connection_has_the_options_of_the_url() -> None:
    """User, password, database, host and port; RESP2; nothing is opened."""
    connection: Any = parse_node(f"redis://me:{SECRET}@a:1234/5").connection(0.5)

    assert type(connection) is Connection
    assert (connection.host, connection.port, connection.db) == ("a", 1234, 5)
    assert (connection.username, connection.password) == ("me", SECRET)
    assert int(connection.protocol) == 2
    assert connection._sock is None  # noqa: SLF001  (that it is not open)


def test_connection_reads_bytes_whatever_the_url_says() -> None:
    """A project may use the URL for its cache, too."""
    address = parse_node("redis://a:6379/0?decode_responses=true")

    assert not address.connection(0.5).encoder.decode_responses


@pytest.mark.parametrize("url", ["redis://a", "rediss://a", "unix:///s"])
def test_connection_has_the_timeout(url: str) -> None:
    """A timeout in the URL takes precedence."""

    def timeouts(of: str) -> tuple[float | None, float | None]:
        connection: Any = parse_node(of).connection(0.5)
        return connection.socket_connect_timeout, connection.socket_timeout

    assert timeouts(url) == (0.5, 0.5)
    assert timeouts(f"{url}?socket_connect_timeout=3") == (3, 0.5)
    assert timeouts(f"{url}?socket_timeout=3") == (0.5, 3)


@pytest.mark.parametrize(
    ("options", "is_checked"),
    [
        ("", True),
        ("?ssl_cert_reqs=required", True),
        ("?ssl_cert_reqs=none", False),
        ("?ssl_check_hostname=false", False),
    ],
)
def test_certificate_must_have_the_name_of_its_host(
    options: str, *, is_checked: bool
) -> None:
    """Unless the URL says otherwise. An older redis-py takes it for any host."""
    connection: Any = parse_node(f"rediss://a{options}").connection(0.5)

    assert connection.check_hostname == is_checked


def test_connection_of_redis_py_tries_once() -> None:
    """redis-py's retries cost seconds for a dead node, and a repeated SET misleads."""
    calls = []

    def fail() -> None:
        calls.append(1)
        raise ConnectionError

    retry: Any = parse_node("redis://a").connection(0.5).retry
    with pytest.raises(ConnectionError):
        retry.call_with_retry(fail, lambda _: None)

    assert calls == [1]


@pytest.mark.parametrize(
    ("url", "kind"),
    [("rediss://a", SSLConnection), ("unix:///s", UnixDomainSocketConnection)],
)
def test_connection_class_follows_from_the_scheme(url: str, kind: type) -> None:
    """redis-py has classes for TLS and unix sockets."""
    assert type(parse_node(url).connection(1.0)) is kind


# -- secrets ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://a:1/0", "redis://a:1/0"),
        (f"redis://:{SECRET}@a:1/0", "redis://***@a:1/0"),
        (f"redis://me:{SECRET}@a:1/0", "redis://***@a:1/0"),
        (f"redis://me:{SECRET}@x@a:1/0", "redis://***@a:1/0"),
        (f"rediss://a?password={SECRET}&db=1", "rediss://a?password=***&db=1"),
        (
            f"unix:///s?username=me&PASSWORD={SECRET}",
            "unix:///s?username=***&PASSWORD=***",
        ),
        (f"http://me:{SECRET}@a", "http://***@a"),
        (f"redis://me:{SECRET}", "redis://***"),
        ("redis://[::1]:1/0", "redis://[::1]:1/0"),
        ("etcd://a:1,b:2", "etcd://a:1,b:2"),
    ],
)
def test_mask_hides_credentials_and_nothing_else(url: str, masked: str) -> None:
    """In every part of a URL that can hold them."""
    assert mask_url(url) == masked


BAD: list[Any] = [
    f"http://me:{SECRET}@a:1",
    f"me:{SECRET}@a:1",
    f"redis://me:{SECRET}@a:port/0",
    f"redis://me:{SECRET}@a:99999999/0",
    f"redis://me:{SECRET}@/0",
    f"redis://me:{SECRET}@:6379/0",
    f"redis://me:{SECRET}@a:1/zero",
    f"redis://me:{SECRET}@a:1/0/1",
    f"redis://me:{SECRET}@a:1/-1",
    f"redis://me:{SECRET}@a:1/0?db=x",
    f"redis://me:{SECRET}@a:1/0?socket_timeout=x",
    f"redis://me:{SECRET}@a:1/0?no_such_option=1",
    f"redis://me:{SECRET}/@a:1/0",
    f"redis://me:{SECRET}#@a:1/0",
    f"redis://me:{SECRET}?@a:1/0",
    f"redis://me:[{SECRET}@a:1/0",
    f"redis://me:12/{SECRET}@a:1/0",
    f"redis://me:12#{SECRET}@a:1/0",
    f"redis://me:{SECRET}",
    f"redis://:{SECRET}/0",
    f"redis://me:{SECRET}%40a:1/0",
    f"redis://me:12/{SECRET}",
    f"unix://me:12/{SECRET}@/x.sock",
    f"redis://a:1/0?pasword={SECRET}",
    f"unix://me:{SECRET}@",
    f"unix://:{SECRET}@?db=1",
    {"url": f"redis://me:{SECRET}@a:1/0", "name": "two words"},
    {"url": f"redis://me:{SECRET}@a:1/0", "name": "a,b"},
    {"url": f"redis://me:{SECRET}@a:1/0", "naem": "a"},
    {"urls": f"redis://me:{SECRET}@a:1/0"},
    {"url": f"http://me:{SECRET}@a", "name": "a"},
    f"rediss://me:{SECRET}@a:1/0?ssl_cert_reqs={SECRET}",
    {},
    "",
    "a:6379",
    None,
    17,
    ("redis://a", "redis://b"),
    f"redis://me:{SECRET}@a:1/0".encode(),
    *(f"{it}://me:{SECRET}\udcff@a:1" for it in ("redis", "zookeeper")),
    f"host=a password={SECRET}\udcff",
]


@pytest.mark.parametrize("spec", BAD, ids=ascii)
def test_bad_node_is_a_clear_error_without_the_password(spec: Any) -> None:
    """There is one kind of error, and no secret in it or its cause."""
    with pytest.raises(ConfigurationError) as caught:
        parse_node(spec)

    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r}"
        error = None if error.__suppress_context__ else error.__context__


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ("a:6379", "redis://host:6379/0"),
        ("redis:///0", "names no host; write redis://host:6379/0"),
        (f"redis://{'a' * 64}/0", "names a host that cannot be one"),
        ("redis://node..example/0", "names a host that cannot be one"),
        ("redis://a/first", "where the number of the database belongs"),
        ("unix://", "names no socket; write unix:///path/to.sock"),
        ({"urls": "redis://a"}, '{"url": "redis://host:6379/0", "name": "a name"}'),
        ({"url": "redis://a", "name": "a b"}, "text without spaces and commas"),
        ("unix:///my, own/redis.sock", '{"url": ..., "name": "redis-a"}'),
        ("unix:///my%2C%20own/redis.sock", "a name with a comma and a space"),
        ("unix:///a%0Ab.sock", "with what cannot be printed"),
        ("redis://a?no_such_option=1", "no_such_option"),
        *(
            (f"{scheme}://me:{SECRET}\udcff@a:1", "a character of it has no UTF-8")
            for scheme in ("redis", "postgresql", "etcd", "zookeeper")
        ),
    ],
)
def test_error_of_a_bad_node_has_the_remedy(spec: Any, remedy: str) -> None:
    """It has what was found, and what to write instead."""
    with pytest.raises(ConfigurationError) as caught:
        parse_node(spec)

    assert remedy in str(caught.value)


@pytest.mark.parametrize("text", [lazystr, UserString])
def test_url_need_not_be_a_str(text: Callable[[str], Any]) -> None:
    """It was taken for a list of letters, and its error spelled the password."""
    (address,) = parse_nodes([text(f"redis://me:{SECRET}@a:1/0")])

    assert address.name == "a:1/0"
    assert address.url == SecretUrl(f"redis://me:{SECRET}@a:1/0")


def test_secret_is_in_no_repr() -> None:
    """Neither the address nor the service shows credentials."""
    node = parse_node(f"redis://me:{SECRET}@a:1/0")

    assert repr(node) == "NodeAddress(name='a:1/0')"
    assert f"{node}" == "a:1/0"
    assert SECRET not in f"{Redlock([node])!r} {vars(Redlock([node]))}"


def test_address_can_be_pickled_and_compared() -> None:
    """It keeps its URL, which may differ under one name."""
    node = parse_node(f"redis://me:{SECRET}@a:1/0")

    assert pickle.loads(pickle.dumps(node)) == node  # noqa: S301  (our own)
    assert node != NodeAddress(node.name, SecretUrl("redis://a:1/0"))


# -- lists -----------------------------------------------------------------------


def test_nodes_keep_their_order() -> None:
    """It is the order of votes and labels."""
    nodes = parse_nodes(["redis://b", {"url": "redis://c", "name": "x"}, "redis://a"])

    assert [node.name for node in nodes] == ["b:6379/0", "x", "a:6379/0"]


@pytest.mark.parametrize("nodes", [[], (), None, "redis://a", b"redis://b"])
def test_error_of_no_nodes_has_an_example(nodes: Any) -> None:
    """A single URL is no list of nodes."""
    with pytest.raises(ConfigurationError, match=r"^No nodes: .*redis://a:6379/0"):
        parse_nodes(nodes)


@pytest.mark.parametrize(
    ("nodes", "fault"),
    [
        # It would vote twice.
        (["redis://a", "redis://b", "redis://a"], "is listed 2 times"),
        (["redis://a", f"redis://:{SECRET}@a:6379/0"], "is listed 2 times"),
        (["redis://a", "rediss://a"], "is listed 2 times"),
        (
            [{"url": "redis://a", "name": "x"}, {"url": "redis://b", "name": "x"}],
            "is listed 2 times",
        ),
        # Two databases, or two names, of one server fail together.
        (["redis://a/0", "redis://a/1"], "are one server"),
        (["redis://a/0", {"url": "redis://a/0", "name": "x"}], "are one server"),
        (["unix:///s?db=0", "unix:///s?db=1"], "are one server"),
    ],
)
def test_node_that_is_listed_twice_is_refused(nodes: Any, fault: str) -> None:
    """Each server has one vote, under one name."""
    with pytest.raises(ConfigurationError, match=fault) as caught:
        parse_nodes(nodes)

    assert SECRET not in str(caught.value)
