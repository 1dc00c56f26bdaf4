"""Stores of three members of which one is killed, and moves from store to store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from celery_redlock.devnodes import DevNodes, DevStore
from celery_redlock.errors import LockHeld, QuorumUnreachable, RedlockError
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.reconfigure import reconfigure
from celery_redlock.stores.connection import StoreError
from celery_redlock.stores.zookeeper import ZooKeeper as ZooKeeperStore
from tests.harness.store_nodes import store_servers

SOON = 5.0
# Seconds in which another leader is elected.
PATIENT: Any = {"node_timeout": 8.0, "connect_timeout": 8.0}


pytestmark = pytest.mark.long
KINDS = ["etcd", "zookeeper"]


@pytest.fixture(params=KINDS)
def cluster(request: pytest.FixtureRequest) -> Iterator[DevStore]:
    """Start three members of each kind."""
    with store_servers(request.param) as cluster:
        yield cluster


@pytest.fixture
def start(cluster: DevStore) -> Iterator[Callable[[], Redlock]]:
    """Give a function that makes a service on the cluster."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Redlock(cluster.urls, **PATIENT)))


@pytest.mark.parametrize("killed", range(3))
def test_a_killed_member_costs_no_lock(
    cluster: DevStore, start: Callable[[], Redlock], killed: int
) -> None:
    """A lock stays held and can be renewed and released, and fences grow."""
    ours, others = start(), start()
    lease = ours.acquire("kept")
    fences: list[Any] = [ours.acquire("other").fence]
    ours.release_base("other", "none")
    cluster.nodes[killed].kill()
    with pytest.raises(LockHeld):
        others.acquire("kept", wait=SOON)
    assert ours.extend(lease)
    with pytest.raises(LockHeld):
        others.acquire("kept")
    assert ours.release(lease) == 1
    for redlock in (others, ours, others):
        later = redlock.acquire("kept")
        fences.append(later.fence)
        assert redlock.release(later) == 1
    assert lease.fence is not None
    assert fences[1] > lease.fence
    assert fences[1:] == sorted(set(fences[1:]))


def test_deployment_moves_from_store_to_store(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """From Redis to etcd, ZooKeeper and PostgreSQL: the fences go on growing."""
    options: dict[str, Any] = {"ttl": 2.0, "max_ttl": 2.0, "node_timeout": 0.6}
    options["connect_timeout"] = 5.0
    fences: list[Any] = []
    with ExitStack() as stack:
        places = [start_nodes(3, max_ttl=2.0).urls]
        for kind in (*KINDS, "postgresql"):
            store = store_servers(kind, max_ttl=2.0, initialize=False)
            places.append(stack.enter_context(store).urls)
        clients = [
            stack.enter_context(closing(Redlock(urls, **options))) for urls in places
        ]
        for number, redlock in enumerate(clients):
            if number:
                reconfigure(clients[number - 1], redlock)
            lease = redlock.acquire("k", wait=30)
            fences.append(lease.fence)
            for earlier in clients[:number]:
                with pytest.raises(RedlockError):
                    earlier.acquire("k")
            redlock.release(lease)
    assert fences == sorted(set(fences))


def test_cluster_keeps_its_name_when_a_member_is_replaced(cluster: DevStore) -> None:
    """The error of a client with another list of members says how, and locks stay."""
    (url,) = cluster.urls
    others = url.rpartition(",")[0]
    with ExitStack() as stack:

        def service(node: Any) -> Redlock:
            return stack.enter_context(closing(Redlock([node], **PATIENT)))

        old, renamed = service(url), service(others)
        lease = old.acquire("kept")
        with pytest.raises(QuorumUnreachable) as refused:
            renamed.acquire("kept")
        assert f'"name": "{old.labels[0]}"' in str(refused.value)
        new = service({"url": others, "name": old.labels[0]})
        with pytest.raises(LockHeld):
            new.acquire("kept")
        old.release(lease)
        new.release(new.acquire("kept"))


@pytest.mark.parametrize("cluster", ["zookeeper"], indirect=True)
def test_chroot_and_password_of_zookeeper(cluster: DevStore) -> None:
    """A chroot must exist; what a user has made, others cannot read or change."""
    (url,) = cluster.urls
    hosts = url.partition("://")[2]
    with pytest.raises(StoreError, match="has no node /apps; create it first"):
        ZooKeeperStore(f"{url}/apps", 5.0)
    with closing(ZooKeeperStore(url, 5.0)) as store:
        store._client.create("/apps")  # noqa: SLF001  (an operator's request)
    with pytest.raises(StoreError, match="has no /redlock; run `celery -A proj redlo"):
        ZooKeeperStore(f"{url}/apps", 5.0)
    right = f"zookeeper://me:right@{hosts}/apps"
    with closing(Redlock([right], **PATIENT)) as redlock:
        redlock.initialize()
        lease = redlock.acquire("kept")
        for login in ("", "me:wrong@"):
            with pytest.raises(StoreError, match="does not let our user") as caught:
                ZooKeeperStore(f"zookeeper://{login}{hosts}/apps", 5.0)
            assert "wrong" not in str(caught.value)
        assert redlock.release(lease) == 1
