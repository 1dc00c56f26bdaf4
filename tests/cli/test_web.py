"""``redlock web``: the page is served, on this machine only unless it is allowed."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from tests.cli.project import Project, Running

TOKEN = "a token of these tests"


def read(url: str, data: bytes | None = None, **headers: str) -> str:
    """Return the page at an address."""
    with urlopen(Request(url, data, headers)) as answer:  # noqa: S310
        body: bytes = answer.read()
    return body.decode()


def url_of(serving: Running) -> str:
    """Return the address that the command prints, once it is served."""
    return str(serving.document()["url"])


@pytest.fixture(autouse=True)
def patient(project: Project) -> None:
    """Wait for nodes also on a very busy machine."""
    project.change(redlock_connect_timeout=10.0)


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)],
)
def test_web_serves_the_page_until_it_is_interrupted(
    project: Project, number: int
) -> None:
    """Ctrl-C and SIGTERM end it, and that is no error."""
    project.hold("invoice:42")

    with project.start("web", "--port", "0", "--json") as serving:
        document = serving.document()
        page, health = (read(document["url"] + p) for p in ("", "healthz"))
        metrics = read(document["url"] + "metrics")
        run = serving.interrupt(number)

    assert document["url"].startswith("http://127.0.0.1:")
    assert document["releases"] is False
    assert "invoice:42" in page
    assert "release?" not in page
    assert health == "ok: 3 of 3 nodes vote, 2 are needed.\n"
    assert "redlock_quorum 2.0" in metrics
    assert run.code == 0
    lines = run.err.splitlines()
    assert [line for line in lines if '"GET / HTTP/1.1" 200' in line] == lines


@pytest.mark.long
def test_web_has_metrics_of_the_tasks_in_all_modules_of_the_app(
    project: Project, tmp_path: Path
) -> None:
    """It imports those of `include`, as a worker does."""
    (tmp_path / "proj_reports.py").write_text(
        "from celery_redlock import singleton_task\n"
        "from proj import app\n\n\n"
        "@singleton_task(app=app, name='proj.report', limit=3, key='r', shared=False)\n"
        "def report() -> None: ...\n"
    )
    project.change(include=["proj_reports"])

    with project.start("web", "--port", "0", "--json") as serving:
        metrics = read(f"{url_of(serving)}metrics")

    assert 'redlock_permits_free{key="r"} 3.0' in metrics


@pytest.mark.long
def test_web_takes_the_token_from_the_environment(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All users of a machine see command lines. A line says that it is needed."""
    monkeypatch.setenv("REDLOCK_WEB_TOKEN", TOKEN)
    project.hold("invoice:42")

    with project.start("web", "--port", "0") as serving:
        line = serving.line()
        url = re.findall(r"shown at (http://127\.0\.0\.1:\S+/)", line)[0]
        page = read(url)

    assert line.startswith(f"The locks on 3 nodes are shown at {url}")
    assert line.endswith("A release needs the token.\n")
    assert "release?key=invoice%3A42" in page


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104
def test_web_listens_on_this_machine_only(project: Project, host: str) -> None:
    """Another address is refused without a flag, and the error names the risk."""
    read_only = project.redlock("web", "--port", "0", "--host", host)
    releases = project.redlock("web", "--port", "0", "--host", host, "--token", TOKEN)

    assert (read_only.code, releases.code) == (2, 2)
    assert f"Other machines can reach {host}." in read_only.err
    assert "add --expose, and --name" in read_only.err
    assert "without encryption" not in read_only.err
    assert "the token would be sent without encryption" in releases.err


def test_web_refuses_a_host_that_cannot_be_a_name(project: Project) -> None:
    """A label of it is too long: that is wrong usage, as an unknown name is."""
    run = project.redlock("web", "--port", "0", "--host", "a" * 64)

    assert run.code == 2
    assert f"The host {'a' * 64} is unknown: " in run.err


@pytest.mark.long
def test_web_that_is_exposed_answers_under_its_name(project: Project) -> None:
    """And under those of this machine. Without a name, nothing is served.

    A health check needs none.
    """
    words = ("--port", "0", "--host", "0.0.0.0", "--expose")  # noqa: S104
    refused = project.redlock("web", *words)
    assert refused.code == 2
    assert "Add --name with the name or address" in refused.err

    with project.start("web", *words, "--name", "locks.example", "--json") as serving:
        url = url_of(serving).replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        pages = [read(url, Host=host) for host in ("locks.example", "localhost:1")]
        health = read(f"{url}healthz", Host="10.0.0.7")
        with pytest.raises(HTTPError, match="421") as unknown:
            read(url, Host="10.0.0.7")
        unknown.value.close()

    assert all("No lock is held." in page for page in pages)
    assert health == "OK\n"


def test_web_logs_a_release_and_a_wrong_token(project: Project) -> None:
    """On stderr, with the address, and without the token."""
    project.hold("invoice:42")
    with project.start("web", "--port", "0", "--json", "--token", TOKEN) as serving:
        url = url_of(serving)
        asked = read(f"{url}release?key=invoice:42")
        form = {"key": "invoice:42", "who": "alice", "reason": "stuck"}
        form["shown"] = re.findall(r'name="shown" value="(\w+)"', asked)[0]
        for token in ("wrong one", TOKEN):
            data = urlencode({**form, "token": token}).encode()
            with contextlib.suppress(HTTPError):
                read(f"{url}release", data, Origin=url.rstrip("/"))
        run = serving.interrupt()

    assert "127.0.0.1 sent a wrong token to release the lock 'invoice:42'." in run.err
    assert "alice released the lock 'invoice:42' on 3 of 3 nodes" in run.err
    assert TOKEN not in run.err
    assert "wrong one" not in run.err


def test_web_on_a_port_that_is_used_is_wrong_usage(project: Project) -> None:
    """Nothing is served, and the error names the port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        run = project.redlock("web", "--port", port)

    assert run.code == 2
    assert f"Port {port} of 127.0.0.1 cannot be used" in run.err
    impossible = project.redlock("web", "--port", "99999")
    assert "must be 0-65535. Nothing is served." in impossible.err
