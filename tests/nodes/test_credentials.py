"""Passwords, permissions and certificates: errors name the missing one, and no secret.

With TLS all requests use it, and an untrusted node gets no vote.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from celery_redlock.devnodes import DevNodes, ServerOptions, redis_servers
from celery_redlock.errors import QuorumUnreachable, RedlockError
from celery_redlock.locking import lock
from celery_redlock.operations.acl import acl_rules
from celery_redlock.wire.quorum import VoteKind
from tests.conftest import missing
from tests.harness.programs import end_of
from tests.nodes.support import (
    BRIEF,
    StartNodes,
    client,
    kinds,
    refusal,
    until,
    until_all_vote,
    until_nothing_is_left,
    use,
)

SECRET = "s3cr3t/@:%#&=?+ ü"


@pytest.mark.every_server
def test_nodes_are_reached_by_unix_socket(start_nodes: StartNodes, key: str) -> None:
    """With unix:// nodes have no port; their labels are the paths."""
    nodes = start_nodes(3, options=ServerOptions(unix_socket=True, password=SECRET))
    with client(nodes) as redlock:
        assert all(label.endswith("/socket/0") for label in redlock.labels)
        assert not any("s3cr3t" in label for label in redlock.labels)
        use(redlock, key)
        nodes.nodes[0].kill()
        nodes.nodes[1].kill()
        error = refusal(redlock, key, says="refused the connection")
        assert redlock.labels[0] in str(error)
        assert "s3cr3t" not in str(error)


@pytest.mark.every_server
def test_nodes_are_reached_as_a_limited_user(start_nodes: StartNodes, key: str) -> None:
    """A user with the rights that `redlock doctor --acl` prints needs no others."""
    acl = acl_rules("redlock")
    options = ServerOptions(username="locker", password=SECRET, acl=acl)
    nodes = start_nodes(3, options=options)
    with client(nodes) as redlock:
        until_all_vote(redlock)
        use(redlock, key)
        for node in nodes.nodes:
            node.command("SCRIPT", "FLUSH")
        use(redlock, key)
    until_nothing_is_left(nodes)


@pytest.mark.every_server
@pytest.mark.parametrize("prefix", ["*", "app[a-z]", "a?b", "x\\y"])
def test_user_of_a_prefix_with_signs_of_a_pattern_has_no_other_keys(
    start_nodes: StartNodes, prefix: str
) -> None:
    """The signs are a part of the names of the keys."""
    (node,) = start_nodes(1).nodes
    rules = acl_rules(prefix).split()
    node.command("ACL", "SETUSER", "locker", "on", f">{SECRET}", *rules)
    url = f"redis://locker:{quote(SECRET, safe='')}@127.0.0.1:{node.port}"

    with redis.Redis.from_url(url) as user:
        assert user.get(f"{prefix}:lock:x") is None
        for other in ("appb:lock:x", "acb:lock:x", "xy:lock:x", "other:lock:x"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                user.get(other)


@pytest.mark.every_server
@pytest.mark.parametrize("missing_right", ["info", "evalsha", "hset", "set"])
def test_right_that_is_missing_is_named(
    start_nodes: StartNodes, key: str, missing_right: str
) -> None:
    """A user without a permission gets no vote; the error quotes the server."""
    options = ServerOptions(username="locker", password="secret")
    nodes = start_nodes(3, options=options)
    for node in nodes.nodes:
        node.command("ACL", "SETUSER", "locker", f"-{missing_right}")
    with client(nodes) as redlock:
        error = refusal(redlock, key)

    assert missing_right in str(error) or "permission" in str(error).lower()
    assert "secret" not in str(error)
    until_nothing_is_left(nodes)


@pytest.mark.parametrize(
    ("password", "fact"),
    [
        ("", "asks for a password; write it into redlock_nodes, as in redis://:pass"),
        (SECRET, "rejected the credentials"),
    ],
    ids=["missing", "wrong"],
)
def test_rejected_password_is_named_and_not_shown(
    start_nodes: StartNodes, caplog: pytest.LogCaptureFixture, password: str, fact: str
) -> None:
    """Credentials that are rejected appear in no error, label or log."""
    caplog.set_level(logging.DEBUG)
    nodes = start_nodes(3, options=ServerOptions(password="right"))
    wrong = f":{quote(password, safe='')}@" if password else ""
    urls = [f"redis://{wrong}127.0.0.1:{node.port}/0" for node in nodes.nodes]
    with client(urls) as redlock:
        error = refusal(redlock, says=fact)
        said = [str(error), repr(error), repr(redlock), *redlock.labels, caplog.text]
        said += [repr(redlock.addresses), str(redlock.check().problems)]

    secrets = ("s3cr3t", wrong[1:-1]) if wrong else ("s3cr3t",)
    assert not any(part in text for text in said for part in secrets)


def test_password_that_changes_is_noticed_and_repaired(
    start_nodes: StartNodes, key: str
) -> None:
    """A client that lost its connections by a change connects again by itself."""
    options = ServerOptions(username="locker", password="one")
    nodes = start_nodes(3, options=options)
    with client(nodes) as redlock:
        use(redlock, key)
        for node in nodes.nodes:
            node.command("ACL", "SETUSER", "locker", "resetpass", ">two")
            node.command("CLIENT", "KILL", "USER", "locker")
        refusal(redlock, key, says="rejected the credentials")
        for node in nodes.nodes:
            node.command("ACL", "SETUSER", "locker", ">one")

        until_all_vote(redlock)
        use(redlock, key)


def test_user_that_was_switched_off_is_thought_of(
    start_nodes: StartNodes, key: str
) -> None:
    """Redis gives the same answer to a wrong password."""
    nodes = start_nodes(3, options=ServerOptions(username="locker", password="one"))
    with client(nodes) as redlock:
        use(redlock, key)
        for node in nodes.nodes:
            node.command("ACL", "SETUSER", "locker", "off")
            node.command("CLIENT", "KILL", "USER", "locker")

        refusal(redlock, key, says="switch that user on")


# -- TLS ---------------------------------------------------------------------------


@pytest.fixture
def tls_nodes(certificate: tuple[Path, Path]) -> Iterator[DevNodes]:
    """Give three nodes that speak TLS and nothing else."""
    files = str(certificate[0]), str(certificate[1])
    options = ServerOptions(certificate=files, password="pass word")
    for binary in redis_servers():
        nodes = DevNodes(3, binary=binary, options=options)
        try:
            nodes.start()
        except RedlockError as error:
            if "tls" not in str(error):
                raise
            continue
        yield nodes
        nodes.stop()
        return
    missing("no redis-server here was built with TLS")


def test_nodes_are_reached_by_tls(tls_nodes: DevNodes, key: str) -> None:
    """With rediss:// all data goes over TLS, also data longer than one record."""
    assert all(url.startswith("rediss://") for url in tls_nodes.urls)
    with client(tls_nodes) as redlock:
        until_all_vote(redlock)
        use(redlock, key)
        use(redlock, [f"{number}".rjust(80, "k") for number in range(100)])
        with lock(redlock, key, ttl=5) as lease:
            end = lease.until
            until(lambda: lease.until > end + 3.0)
    until_nothing_is_left(tls_nodes)


@pytest.mark.long
def test_tls_nodes_recover_their_fences(tls_nodes: DevNodes) -> None:
    """A hundred kilobytes of counters, in both directions, fit through TLS."""
    with client(tls_nodes, ttl=BRIEF, max_ttl=BRIEF, prefix="short") as redlock:
        redlock.initialize()
        first, numbers = tls_nodes.nodes[0], [4 * 10**15 + n for n in range(4096)]
        for node in tls_nodes.nodes:
            fields = [word for pair in enumerate(numbers) for word in pair]
            node.command("HSET", "short:meta", *fields)
        first.command("DEL", "short:meta")

        until_all_vote(redlock)

        # Each look whether all nodes vote has taken a lock, with one more fence.
        got = first.command("HMGET", "short:meta", *range(4096))
        pairs = zip(got, numbers, strict=True)
        assert all(int(counter) >= known for counter, known in pairs)


def test_certificate_that_is_not_trusted_is_an_error_of_that_node(
    tls_nodes: DevNodes,
) -> None:
    """A node with an untrusted certificate gets no vote, and the error says why."""
    urls = [url.partition("?")[0] for url in tls_nodes.urls]
    with client(urls) as redlock:
        error = refusal(redlock, says="certificate")

    assert "pass" not in str(error)


@pytest.mark.long
def test_certificate_that_is_replaced_is_read_at_the_next_connection(
    tls_nodes: DevNodes, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """A file that was wrong, or has expired, can be replaced while clients run."""
    authority = tmp_path / "authority.pem"
    shutil.copy(certificate[1], authority)  # a key, and no certificate
    urls = [url.partition("?")[0] for url in tls_nodes.urls]
    with client([f"{url}?ssl_ca_certs={quote(str(authority))}" for url in urls]) as it:
        refusal(it, says="ssl_ca_certs")

        shutil.copy(certificate[0], authority)

        until_all_vote(it)


def test_tls_client_of_a_plain_node_is_told(start_nodes: StartNodes, key: str) -> None:
    """A Redis without TLS is silent: the first error does not wait for its connection.

    That takes longer than a lock waits. Here it lasts for seconds.
    """
    (url,) = start_nodes(1, initialize=False).urls
    url = f"{url.replace('redis://', 'rediss://')}?socket_timeout=5"
    with (
        client([url], node_timeout=0.05, connect_timeout=0.2) as redlock,
        pytest.raises(QuorumUnreachable) as refused,
    ):
        redlock.acquire(key)

    told = "is not connected yet; write redis:// in its URL if it is a Redis without"
    assert told in str(refused.value)


def test_plain_client_of_a_tls_node_is_told(tls_nodes: DevNodes) -> None:
    """redis:// to a node that speaks TLS fails, and does not hang."""
    urls = [f"redis://:x@127.0.0.1:{node.port}/0" for node in tls_nodes.nodes]
    with client(urls) as redlock:
        error = refusal(redlock)

    assert kinds(error.ballot) == [VoteKind.SILENT] * 3


@pytest.fixture
def strict(tls_nodes: DevNodes, certificate: tuple[Path, Path], tmp_path: Path) -> str:
    """Give the URL of a node that wants a certificate, with ``certificate`` trusted.

    Beside it, ``tmp_path`` has a key of another certificate and one with a password.
    """
    openssl = shutil.which("openssl") or ""
    other, locked = tmp_path / "other.pem", tmp_path / "locked.pem"
    kind = ("-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048")
    end_of(openssl, "genpkey", *kind, "-out", str(other))
    files = ("-in", str(certificate[1]), "-out", str(locked))
    end_of(openssl, "pkey", *files, "-aes256", "-passout", "pass:hush")
    node = tls_nodes.nodes[0]
    node.command("CONFIG", "SET", "tls-ca-cert-file", str(certificate[0]))
    node.command("CONFIG", "SET", "tls-auth-clients", "yes")
    return tls_nodes.urls[0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "a certificate of this client"),
        ({"certfile": "own", "keyfile": "gone"}, "the file of ssl_keyfile cannot be"),
        ({"certfile": "own", "keyfile": "other"}, "belongs to another certificate"),
        ({"certfile": "own", "keyfile": "own"}, "no certificate or no key"),
        ({"certfile": "own", "keyfile": "locked"}, "a key that needs a password"),
    ],
)
def test_fault_of_the_clients_own_certificate_is_named(
    strict: str,
    certificate: tuple[Path, Path],
    tmp_path: Path,
    files: dict[str, str],
    reason: str,
) -> None:
    """Not the words of OpenSSL, and not a question for a password on the terminal."""
    names = {"own": certificate[0]}
    paths = {
        it: names.get(name, tmp_path / f"{name}.pem") for it, name in files.items()
    }
    options = "".join(f"&ssl_{it}={quote(str(path))}" for it, path in paths.items())
    with client([strict + options]) as redlock:
        error = refusal(redlock, says=reason)

    assert "_ssl.c" not in str(error)


@pytest.mark.long
def test_node_that_wants_a_certificate_is_reached_with_a_locked_key(
    strict: str, certificate: tuple[Path, Path], tmp_path: Path, key: str
) -> None:
    """The password of the client's key is an option of the URL."""
    own, locked = quote(str(certificate[0])), quote(str(tmp_path / "locked.pem"))
    options = f"&ssl_certfile={own}&ssl_keyfile={locked}&ssl_password=hush"
    with client([strict + options], prefix="locked") as redlock:
        redlock.initialize()
        use(redlock, key)
