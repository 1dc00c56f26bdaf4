"""Stores behind TLS: ``etcds://``, and ``sslmode`` of PostgreSQL."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from celery_redlock.devnodes.processes import Process, free_port
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.doctor import diagnose
from celery_redlock.stores.etcd import Etcd as EtcdStore
from tests.conftest import missing
from tests.harness.store_nodes import store_servers

pytestmark = pytest.mark.long
DAYS = ("-days", "2", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
STRANGER = (
    *("-x509", *DAYS, "-keyout", "stranger.key", "-out", "stranger.pem"),
    *("-subj", "/CN=another authority"),
)


def _openssl(folder: Path, *words: str) -> None:
    program = str(shutil.which("openssl"))
    subprocess.run(  # noqa: S603  (the found openssl)
        [program, *words], check=True, capture_output=True, cwd=folder
    )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Start an etcd that asks for certificates; give its URL and their folder."""
    for program in ("etcd", "openssl"):
        if not shutil.which(program):
            missing(f"{program} is not installed")
    folder = tmp_path_factory.mktemp("tls")
    ca = ("-x509", *DAYS, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ours")
    _openssl(folder, "req", *ca)
    _openssl(folder, "req", *STRANGER)
    for name in ("server", "client"):
        request = ("-newkey", "ec", *DAYS[-2:], "-nodes", "-keyout", f"{name}.key")
        _openssl(folder, "req", *request, "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        files = ("-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", "names")
        _openssl(folder, "x509", "-req", *signed, *files)
    port, peer = free_port(), free_port()
    own = f"https://127.0.0.1:{port}"
    process = Process(
        "etcd-tls",
        [
            *("etcd", "--data-dir", str(folder / "data")),
            *("--listen-client-urls", own, "--advertise-client-urls", own),
            *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-cluster", f"default=http://127.0.0.1:{peer}"),
            *("--cert-file", str(folder / "server.pem")),
            *("--key-file", str(folder / "server.key"), "--client-cert-auth"),
            *("--trusted-ca-file", str(folder / "ca.pem")),
        ],
        log=folder / "log",
        ready="ready to serve client requests",
    )
    process.start()
    try:
        process.wait_until_ready()
        yield f"etcds://127.0.0.1:{port}", folder
    finally:
        process.kill()


def test_lock_over_tls(secured: tuple[str, Path]) -> None:
    """With the authority's and its own certificate a client gets locks."""
    url, folder = secured
    files = f"?ca={folder}/ca.pem&cert={folder}/client.pem&key={folder}/client.key"
    with closing(Redlock([url + files], node_timeout=5.0)) as redlock:
        redlock.initialize()
        lease = redlock.acquire("secured")
        assert lease.fence
        assert redlock.release(lease) == 1


def test_listener_gets_messages_over_tls(secured: tuple[str, Path]) -> None:
    """Also one that takes many records of TLS, which a socket does not tell of."""
    url, folder = secured
    files = f"?ca={folder}/ca.pem&cert={folder}/client.pem&key={folder}/client.key"
    texts = [b"1", b"x" * 300_000, b"2"]
    ours, theirs = socket.socketpair()
    with (
        closing(EtcdStore(url + files, 5.0)) as store,
        closing(EtcdStore(url + files, 5.0)) as others,
        ours,
        theirs,
    ):
        messages = store.listen(b"secured", ours)
        assert next(messages) == b""
        for text in texts:
            assert others.run([[b"PUBLISH", b"secured", text]]) == [1]
            assert next(messages) == text
        theirs.close()
        assert list(messages) == []


def unreachable(url: str) -> tuple[str, str]:
    """Return what the doctor says of a store that it cannot use, and the remedy."""
    with closing(Redlock([url], node_timeout=5.0, connect_timeout=5.0)) as redlock:
        found = {it.code: it for it in diagnose(redlock, span=0.1)}
    return found["unreachable"].fact, found["unreachable"].remedy


CLIENT = "&cert={0}/client.pem&key={0}/client.key"


def test_doctor_tells_that_the_certificate_of_etcd_has_another_name(
    secured: tuple[str, Path],
) -> None:
    """The host in the URL is none of those in the certificate."""
    url, folder = secured
    named = url.replace("127.0.0.1", "localhost") + f"?ca={folder}/ca.pem"
    fact, advice = unreachable(named + CLIENT.format(folder))
    assert "its certificate is for another name" in fact
    assert "a name that is in its certificate into redlock_nodes" in advice


def test_doctor_tells_one_remedy_for_all_members(secured: tuple[str, Path]) -> None:
    """The same is wrong with each member: each is told, and the remedy once."""
    url, _ = secured
    members = url.removeprefix("etcds://")
    other = members.replace("127.0.0.1", "localhost")
    fact, advice = unreachable(f"{url},{other}")
    for member in (members, other):
        assert f"{member} (its certificate is from an authority" in fact
    assert advice.startswith("Name the file of the authority in redlock_nodes")
    assert advice.count("etcds://...?ca=") == 1
    assert "start the members" not in advice


def test_plain_url_of_an_etcd_with_tls_is_told(secured: tuple[str, Path]) -> None:
    """It closes the connection: the remedy is another scheme."""
    url, _ = secured
    fact, advice = unreachable(url.replace("etcds", "etcd"))
    assert "closes the connection at the first request" in fact
    assert "write etcds:// in redlock_nodes" in advice


@pytest.fixture(scope="module")
def secured_postgresql(secured: tuple[str, Path]) -> Iterator[tuple[str, Path]]:
    """Start a PostgreSQL with TLS that wants certificates; give its URL and theirs."""
    _, folder = secured
    with store_servers("postgresql") as store:
        (url,) = store.urls
        with psycopg.connect(url, autocommit=True) as server:
            names = "SELECT current_setting('data_directory'), "
            found = server.execute(names + "current_setting('hba_file')").fetchone()
            data, rules = map(Path, found or ())
            for source, target in (
                ("server.pem", "server.crt"),
                ("server.key", "server.key"),
                ("ca.pem", "root.crt"),
            ):
                shutil.copyfile(folder / source, data / target)
                (data / target).chmod(0o600)
                shutil.chown(data / target, data.owner(), data.group())
            rules.write_text("hostssl all redlock all trust clientcert=verify-ca\n")
            server.execute("ALTER SYSTEM SET ssl_ca_file TO 'root.crt'")
            server.execute("ALTER SYSTEM SET ssl TO on")
            server.execute("SELECT pg_reload_conf()")
        yield url, folder


SSL = "?sslmode=verify-full&sslrootcert={0}/"


LACKS = {
    "secured": [
        ("", "is from an authority that is not known here", "etcds://...?ca="),
        (
            "?ca={0}/ca.pem",
            "may want a certificate of this client",
            "etcds://...?cert=",
        ),
        (
            "?ca={0}/ca.pem&cert={0}/stranger.pem&key={0}/stranger.key",
            "or refuse the one that it got",
            "etcds://...?cert=",
        ),
    ],
    "secured_postgresql": [
        (SSL + "stranger.pem", "certificate verify failed", "sslrootcert"),
        (SSL + "away.pem", "away.pem", "Correct sslrootcert"),
        (SSL + "ca.pem", "client certificate", "Correct sslcert and sslkey"),
        (
            SSL + "ca.pem&sslcert={0}/stranger.pem&sslkey={0}/stranger.key",
            "SSL error: ",
            "Correct sslcert and sslkey",
        ),
        (
            SSL + "ca.pem&sslcert={0}/client.pem&sslkey={0}/stranger.key",
            "stranger.key",
            "Correct sslcert and sslkey",
        ),
        ("?sslmode=verify-fool", "verify-fool", "Correct it in redlock_no"),
    ],
}


@pytest.mark.parametrize(
    ("store", "options", "told", "remedy"),
    [(store, *case) for store, cases in LACKS.items() for case in cases],
)
def test_doctor_tells_what_tls_of_a_store_lacks(
    request: pytest.FixtureRequest, store: str, options: str, told: str, remedy: str
) -> None:
    """It runs, so that to start it would be no help."""
    url, folder = request.getfixturevalue(store)
    fact, advice = unreachable(url + options.format(folder))
    assert told in fact
    assert remedy in advice
    assert "Start it" not in advice


def test_doctor_tells_that_the_certificate_of_postgresql_has_another_name(
    secured_postgresql: tuple[str, Path],
) -> None:
    """The host in the URL is none of those in the certificate."""
    url, folder = secured_postgresql
    named = url.replace("127.0.0.1", "localhost") + SSL.format(folder) + "ca.pem"
    fact, advice = unreachable(named)
    assert "does not match host name" in fact
    assert "Write a host that is in its certificate" in advice
