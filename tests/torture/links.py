"""Faults of the links between workers and nodes: which links, and what happens there.

No bound protects the locks: a majority of the nodes may be cut off.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.torture.network import Link, Network, Undo

LinkFault = Callable[[], tuple[list["Link"], "Undo"]]  # harms these links


class LinkFaults:
    """Chooses links of a network and harms them.

    Attributes:
        kinds: The weight of each kind of fault, and what does it.
    """

    def __init__(self, network: Network, dice: random.Random) -> None:
        self._network, self._random = network, dice
        self._nodes, self._workers = network.servers, network.clients
        self.kinds: dict[str, tuple[int, LinkFault]] = {
            "link to a node cut": (6, lambda: self._drop(_both([self._link()]))),
            "link to a node cut one way": (8, lambda: self._drop([self._link()])),
            "node cut off": (5, lambda: self._drop(_both(self._sent(self._nodes)))),
            "worker cut off": (4, lambda: self._drop(_both(self._sent(self._workers)))),
            "network split in two": (5, self._split),
            "packets slow": (5, lambda: self._slow(100)),
            "packets reordered": (6, lambda: self._slow(30)),
            "packets lost": (6, self._lose),
            "connections to a node stalled": (7, self._stall),
        }

    def _link(self) -> Link:
        """Choose a link, in one of its directions."""
        link = [self._random.choice(self._workers), self._random.choice(self._nodes)]
        self._random.shuffle(link)
        return link[0], link[1]

    def _sent(self, senders: Iterable[str] = ()) -> list[Link]:
        """Choose one sender, and return its links to all that it sends to."""
        sender = self._random.choice([*(senders or (*self._nodes, *self._workers))])
        peers = self._workers if sender in self._nodes else self._nodes
        return [(sender, peer) for peer in peers]

    def _split(self) -> tuple[list[Link], Undo]:
        """Split nodes and workers in two: each link between both halves is cut."""
        ours = {
            *self._random.sample(self._nodes, self._random.choice([1, 2])),
            *self._random.sample(self._workers, 2),
        }
        links = [(one, other) for one in self._nodes for other in self._workers]
        return self._drop(_both(link for link in links if len(ours & {*link}) == 1))

    def _drop(self, links: list[Link], percent: int = 100) -> tuple[list[Link], Undo]:
        return links, self._network.drop(links, percent)

    def _lose(self) -> tuple[list[Link], Undo]:
        return self._drop(_both(self._sent()), self._random.choice([5, 15, 40]))

    def _slow(self, percent: int) -> tuple[list[Link], Undo]:
        links, kbit = self._sent(), self._random.choice([8, 16, 32, 64])
        return links, self._network.slow(links, kbit, percent)

    def _stall(self) -> tuple[list[Link], Undo]:
        worker = self._random.choice(self._workers)
        node = self._random.choice(self._nodes)
        return _both([(worker, node)]), self._network.stall(worker, node)


def _both(links: Iterable[Link]) -> list[Link]:
    """Return these links in both directions."""
    return [way for one, other in links for way in ((one, other), (other, one))]
