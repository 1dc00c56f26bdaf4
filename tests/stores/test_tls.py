"""etcd behind TLS: ``etcds://``."""

from __future__ import annotations

import shutil
import socket
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from celery_redlock.devnodes.processes import Process, free_port
from celery_redlock.locks.redlock import Redlock
from celery_redlock.stores.connection import StoreError
from celery_redlock.stores.etcd import Etcd as EtcdStore
from tests.conftest import missing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.long
DAYS = ("-days", "2", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")


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


@pytest.mark.parametrize("files", ["", "?ca={}/ca.pem"])
def test_certificate_that_is_not_trusted_is_named(
    secured: tuple[str, Path], files: str
) -> None:
    """A server that the client does not trust, and the other way around."""
    url, folder = secured
    with pytest.raises(StoreError, match="TLS failed"):
        EtcdStore(url + files.format(folder), 5.0)


def test_plain_url_of_a_server_with_tls_is_refused(secured: tuple[str, Path]) -> None:
    """Without TLS the server answers with an error, and it is told."""
    url, _ = secured
    with pytest.raises(StoreError):
        EtcdStore(url.replace("etcds", "etcd"), 5.0)
