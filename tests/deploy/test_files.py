"""The files of ``deploy/``: passwords, rights, units, and what Kubernetes would get."""

from __future__ import annotations

import json
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from celery_redlock import Redlock
from celery_redlock.devnodes.processes import Process, free_port
from celery_redlock.operations.acl import acl_rules
from celery_redlock.settings import Settings
from celery_redlock.wire.url import parse_nodes
from tests.docs.reader import blocks_of
from tests.harness.programs import end_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
UNIT = DEPLOY / "systemd" / "redlock-node@.service"
PAGE = (ROOT / "docs" / "how-to" / "start-nodes.md").read_text(encoding="utf-8")


def make_secrets(*words: str, code: int = 0) -> str:
    """Run the script and return what it said."""
    script = DEPLOY / "make_secrets.py"
    done = end_of(sys.executable, script, *words, code=code, umask=0o077)
    return done.stdout + done.stderr


def copy_deploy(folder: Path) -> None:
    """Copy `deploy/` into a folder, without passwords that a user has made in it."""
    without = shutil.ignore_patterns("__pycache__", "secrets*")
    shutil.copytree(DEPLOY, folder / "deploy", ignore=without)


def words_after(command: str) -> list[str]:
    """Return the arguments of a command that the page shows once."""
    (line,) = [
        line
        for language, block in blocks_of(PAGE)
        for line in block.splitlines()
        if language == "sh" and command in line
    ]
    return line.split()


# -- Passwords ---------------------------------------------------------------------


def mode_of(path: Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_differ_between_nodes_and_stay_with_clients(tmp_path: Path) -> None:
    """A node has the hash of its own password, in a folder of its owner."""
    folder = tmp_path / "secrets"

    make_secrets("--to", str(folder), "a=10.0.0.1", "b=10.0.0.2:6380")

    first, second = parse_nodes(json.loads((folder / "nodes.json").read_text()))
    assert (first.name, first.server) == ("a", "10.0.0.1:6379")
    assert (second.name, second.server) == ("b", "10.0.0.2:6380")
    urls = [address.url.reveal() for address in (first, second)]
    passwords = [url.split(":")[2].split("@")[0] for url in urls]
    assert len(set(passwords)) == 2
    assert min(map(len, passwords)) > 40
    texts = [(folder / f"{name}.acl").read_text() for name in "ab"]
    assert not [word for word in passwords for text in texts if word in text]
    assert mode_of(folder) == 0o700
    assert mode_of(folder / "nodes.json") == 0o600
    assert mode_of(folder / "a.acl") == 0o644  # the server is another user


def test_secrets_are_never_overwritten(tmp_path: Path) -> None:
    """A second run, or a name that is given twice, changes nothing."""
    make_secrets("--to", str(tmp_path / "one"), "a=10.0.0.1")
    before = (tmp_path / "one" / "nodes.json").read_text()

    said = make_secrets("--to", str(tmp_path / "one"), "a=10.0.0.1", code=1)
    make_secrets("--to", str(tmp_path / "two"), "a=10.0.0.1", "a=10.0.0.2", code=2)
    make_secrets("--to", str(tmp_path / "two"), "10.0.0.1", code=2)

    assert "exists" in said
    assert (tmp_path / "one" / "nodes.json").read_text() == before
    assert not (tmp_path / "two").exists()


def test_secrets_may_ask_for_tls(tmp_path: Path) -> None:
    """With TLS, clients verify the nodes with the certificate of their CA."""
    folder = tmp_path / "secrets"

    make_secrets("--to", str(folder), "--tls", "--ca", "/etc/redlock/ca.crt", "a=db")

    (node,) = json.loads((folder / "nodes.json").read_text())
    assert node["url"].startswith("rediss://redlock:")
    assert node["url"].endswith("@db:6379/0?ssl_ca_certs=/etc/redlock/ca.crt")


def test_secrets_are_no_files_of_the_repository() -> None:
    """The folder with the passwords, and the variables of Compose, are ignored."""
    ignored = (DEPLOY / ".gitignore").read_text().splitlines()

    assert ignored == ["/secrets*/", "/compose/.env"]


def test_rights_are_those_that_the_scripts_need() -> None:
    """The file has what `doctor --acl` prints."""
    assert (DEPLOY / "rights.txt").read_text().strip() == acl_rules("redlock")


def test_settings_are_the_same_everywhere() -> None:
    """Kustomize reads no file outside its folder, so it has a copy."""
    copy = KUBERNETES / "base" / "node.conf"

    assert copy.read_bytes() == (DEPLOY / "node.conf").read_bytes()


# -- systemd -----------------------------------------------------------------------


def setting(name: str) -> list[str]:
    """Return the values of a setting of the unit."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


@contextmanager
def unit_started(folder: Path, server: str, port: int) -> Iterator[None]:
    """Start what the unit starts, with the variables that systemd sets."""
    (command,) = setting("ExecStart")
    (folder / "run").mkdir()
    values = {
        "${SERVER}": server,
        "/etc/redlock/node.conf": str(DEPLOY / "node.conf"),
        "${RUNTIME_DIRECTORY}": str(folder / "run"),
        "${CREDENTIALS_DIRECTORY}/users.acl": str(folder / "secrets" / "a.acl"),
        "$OPTIONS": f"--port {port}",
    }
    for shown, real in values.items():
        assert shown in command
        command = command.replace(shown, real)
    ready = "Ready to accept connections"
    process = Process("node", command.split(), log=folder / "log", ready=ready)
    process.start()
    try:
        process.wait_until_ready()
        yield
    finally:
        process.kill()


@pytest.mark.every_server
def test_unit_starts_a_node_with_the_least_rights(
    tmp_path: Path, redis_server: str
) -> None:
    """Its command and its users work: locks, and nothing else."""
    port = free_port()
    folder = tmp_path / "secrets"
    make_secrets("--to", str(folder), f"a=127.0.0.1:{port}")
    nodes = json.loads((folder / "nodes.json").read_text())

    with unit_started(tmp_path, redis_server, port):
        redlock = Redlock(nodes)
        try:
            redlock.initialize()
            assert redlock.release(redlock.acquire("key"))
        finally:
            redlock.close()
        health = redis.Redis(port=port, username="health", password="any")
        stranger = redis.Redis(port=port)
        ours = redis.Redis.from_url(nodes[0]["url"])
        try:
            assert health.ping()
            with pytest.raises(redis.exceptions.NoPermissionError):
                health.get("redlock:meta")
            with pytest.raises(redis.exceptions.AuthenticationError):
                stranger.ping()
            with pytest.raises(redis.exceptions.NoPermissionError):
                ours.get("another:key")
            with pytest.raises(redis.exceptions.NoPermissionError):
                ours.flushall()
            memory = ours.info("memory")
            assert memory["maxmemory_policy"] == "noeviction"
            assert memory["maxmemory"] > 0
        finally:
            for client in (health, stranger, ours):
                client.close()
    assert list((tmp_path / "run").iterdir()) == []


def systemd_analyze(*words: str) -> None:
    """Run systemd-analyze without a complaint."""
    path = shutil.which("systemd-analyze")
    if path is None:
        pytest.skip("systemd-analyze is not on PATH; it checks the unit (systemd)")
    end_of(path, *words)


def test_unit_is_valid(tmp_path: Path) -> None:
    """Systemd knows all of its settings."""
    instance = tmp_path / "redlock-node@redlock-a.service"
    shutil.copy(UNIT, instance)

    systemd_analyze("verify", "--man=no", str(instance))


def test_unit_has_few_rights(tmp_path: Path) -> None:
    """The exposure that systemd computes is low: 0 is the least, 10 the most."""
    instance = tmp_path / "redlock-node@redlock-a.service"
    shutil.copy(UNIT, instance)

    systemd_analyze("security", "--offline=true", "--threshold=15", str(instance))


# -- Kubernetes --------------------------------------------------------------------


def read_yaml(path: Path) -> list[dict[str, Any]]:
    """Return the documents of a file."""
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def find_kubectl() -> str:
    """Return the path of kubectl; without it, skip."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not on PATH; it renders the files for Kubernetes")
    return kubectl


def rendered(folder: Path) -> list[dict[str, Any]]:
    """Return what ``kubectl apply --kustomize`` would send."""
    kubectl = find_kubectl()
    return list(yaml.safe_load_all(end_of(kubectl, "kustomize", folder).stdout))


def one(kind: str, among: list[dict[str, Any]], name: str = "") -> dict[str, Any]:
    """Return the document of a kind."""
    (found,) = [
        document
        for document in among
        if document["kind"] == kind and name in ("", document["metadata"]["name"])
    ]
    return found


def test_kubernetes_gets_valid_resources(tmp_path: Path) -> None:
    """Kubernetes knows each field, from the oldest supported version to the newest."""
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate",
        reason="kubernetes-validate is not installed; it has the schemas of Kubernetes",
    )
    copy_deploy(tmp_path)
    ((_, own),) = [block for block in blocks_of(PAGE) if block[0] == "yaml"]
    (tmp_path / "kustomization.yaml").write_text(own)
    versions = ("1.27", kubernetes_validate.latest_version())

    for folder in (KUBERNETES / "base", KUBERNETES / "tls", tmp_path):
        for document in rendered(folder):
            if document["apiVersion"].startswith("cert-manager.io/"):
                continue  # not a part of Kubernetes
            for version in versions:
                kubernetes_validate.validate(document, version, strict=True)


def test_kubernetes_overlay_of_the_page_changes_the_image(tmp_path: Path) -> None:
    """The file that the page shows starts Valkey."""
    copy_deploy(tmp_path)
    ((_, own),) = [block for block in blocks_of(PAGE) if block[0] == "yaml"]
    (tmp_path / "kustomization.yaml").write_text(own)

    pod = one("StatefulSet", rendered(tmp_path))["spec"]["template"]["spec"]

    assert pod["containers"][0]["image"] == "valkey/valkey:8"


@pytest.mark.parametrize("folder", ["base", "tls"])
def test_kubernetes_selects_the_pods(folder: str) -> None:
    """Service, budget, anti-affinity and spread select the pods of the set."""
    documents = rendered(KUBERNETES / folder)
    nodes = one("StatefulSet", documents)["spec"]
    labels = nodes["template"]["metadata"]["labels"].items()
    affinity = nodes["template"]["spec"]["affinity"]["podAntiAffinity"]
    (apart,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    (spread,) = nodes["template"]["spec"]["topologySpreadConstraints"]
    budget = one("PodDisruptionBudget", documents)["spec"]
    service = one("Service", documents)

    for selector in (
        nodes["selector"]["matchLabels"],
        apart["labelSelector"]["matchLabels"],
        spread["labelSelector"]["matchLabels"],
        budget["selector"]["matchLabels"],
        service["spec"]["selector"],
    ):
        assert selector
        assert selector.items() <= labels
    assert budget["maxUnavailable"] == 1
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert service["metadata"]["name"] == nodes["serviceName"]
    assert {item["metadata"].get("namespace", "redlock") for item in documents} == {
        "redlock"
    }


def test_kubernetes_stops_one_node_at_a_time() -> None:
    """A pod is ready only after the time for which a restarted node has no vote."""
    documents = read_yaml(KUBERNETES / "base" / "nodes.yaml")
    nodes = one("StatefulSet", documents)["spec"]
    (container,) = nodes["template"]["spec"]["containers"]
    max_ttl = Settings(nodes=parse_nodes(["redis://redlock-a"])).max_ttl

    assert container["readinessProbe"]["initialDelaySeconds"] > max_ttl + 10
    assert nodes["replicas"] == 3
    assert one("Service", documents)["spec"]["publishNotReadyAddresses"]


def test_kubernetes_lets_clients_alone_connect_to_the_nodes() -> None:
    """A node opens no connection, and other pods cannot guess at its password."""
    (policy,) = read_yaml(KUBERNETES / "base" / "network-policy.yaml")
    documents = read_yaml(KUBERNETES / "base" / "nodes.yaml")
    (container,) = one("StatefulSet", documents)["spec"]["template"]["spec"][
        "containers"
    ]

    spec = policy["spec"]
    assert {*spec["policyTypes"]} == {"Ingress", "Egress"}
    assert spec["egress"] == []
    (rule,) = spec["ingress"]
    assert [port["port"] for port in rule["ports"]] == [container["ports"][0]["name"]]
    (client,) = rule["from"]
    assert client["podSelector"]["matchLabels"] == {"redlock-client": "true"}
    assert 'redlock-client: "true"' in PAGE


def test_kubernetes_keeps_nothing_and_gives_no_rights() -> None:
    """The volumes are in memory, and the container satisfies the standard."""
    documents = read_yaml(KUBERNETES / "base" / "nodes.yaml")
    pod = one("StatefulSet", documents)["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    kept = [
        volume["name"]
        for volume in pod["volumes"]
        if volume.get("emptyDir", {"medium": "Memory"}).get("medium") != "Memory"
        or not {"emptyDir", "configMap", "secret"} & set(volume)
    ]
    assert kept == []
    assert "volumeClaimTemplates" not in one("StatefulSet", documents)["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (namespace,) = read_yaml(KUBERNETES / "base" / "namespace.yaml")
    assert "restricted" in namespace["metadata"]["labels"].values()


def test_kubernetes_names_are_those_of_the_page() -> None:
    """Pods, secret keys, certificates and addresses of the page agree."""
    nodes = one("StatefulSet", read_yaml(KUBERNETES / "base" / "nodes.yaml"))
    pods = [f"redlock-{number}" for number in range(nodes["spec"]["replicas"])]
    hosts = [f"{pod}.nodes.redlock.svc" for pod in pods]

    words = words_after("make_secrets.py --to")
    assert words[-3:] == [
        f"{pod}={host}" for pod, host in zip(pods, hosts, strict=True)
    ]
    files = [f"{words[words.index('--to') + 1]}/{pod}.acl" for pod in pods]
    secret = words_after("create secret generic")
    assert secret[-3:] == [f"--from-file={file}" for file in files]
    certificate = one(
        "Certificate", read_yaml(KUBERNETES / "tls" / "certificate.yaml"), "redlock"
    )
    assert certificate["spec"]["dnsNames"] == hosts
    volumes = nodes["spec"]["template"]["spec"]["volumes"]
    assert words_after("create secret generic")[6] in str(volumes)


def test_kubernetes_gets_the_passwords_as_the_page_says(tmp_path: Path) -> None:
    """The commands of the page make a secret with one file for each pod."""
    kubectl = find_kubectl()
    copy_deploy(tmp_path)
    make, store = words_after("make_secrets.py --to"), words_after("generic")

    for command in (
        [sys.executable, *make[1:]],
        [kubectl, *store[1:], "--dry-run=client", "--output=yaml"],
    ):
        done = end_of(*command, cwd=tmp_path)

    made = yaml.safe_load(done.stdout)
    assert sorted(made["data"]) == [f"redlock-{number}.acl" for number in range(3)]
    assert made["metadata"]["name"] == "redlock-users"
    assert made["metadata"]["namespace"] == "redlock"


def test_unit_and_page_name_the_same_files() -> None:
    """The page installs the files that the unit reads."""
    commands = [line for line in PAGE.splitlines() if line.startswith("install ")]
    targets = [line.split()[-1] for line in commands]

    (users,) = setting("LoadCredential")
    (started,) = setting("ExecStart")
    assert targets[0] in started.split()
    assert targets[1] == users.partition(":")[2].replace("%i", "redlock-a")
    sources = [ROOT / line.split()[-2] for line in commands]
    assert [path.exists() for path in (sources[0], sources[2])] == [True, True]
    assert sources[1].parent == DEPLOY / "secrets"
