"""Cache of the networks of graphs: one bound for those of all graphs and selections. Spec §4.2."""

import threading
from typing import NamedTuple
from weakref import ref

import numpy as np
from cachetools import LRUCache

from recorder.hashing import compute_sha256
from recorder.memory.graph.arrays import Bools
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.views.networkx_graph import Network

#: Nodes and edges of all networks that a process keeps: about 250 MB.
_KEPT_SIZE = 400_000


class _VersionNetworks:
    """Networks of one version of a graph, by their sessions; they are freed with its columns."""

    def __init__(self) -> None:
        self.kept: dict[str, Network] = {}
        self.lock = threading.Lock()


class _NetworkKey(NamedTuple):
    version: "ref[_VersionNetworks]"
    #: Digest of the chosen sessions.
    chosen: str


class _Sizes(LRUCache[_NetworkKey, int]):
    """Sizes of the networks that are kept; one that is left out for want of room is freed."""

    def popitem(self) -> tuple[_NetworkKey, int]:
        key, size = super().popitem()
        networks = key.version()
        if networks is not None:
            networks.kept.pop(key.chosen, None)
        return key, size


class NetworkCache:
    """The networks that were asked for last, whatever their graphs, up to a number of nodes and edges."""

    def __init__(self, max_size: int = _KEPT_SIZE) -> None:
        self._sizes = _Sizes(max_size, lambda size: size)
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Most nodes and edges that the kept networks have; it may count some that are already freed."""
        return int(self._sizes.currsize)

    def read(self, columns: GraphColumns, chosen: Bools) -> Network:
        """Return the network of chosen sessions; it is built if it is not kept."""
        networks = columns.derive("networks", lambda _: _VersionNetworks())
        key = _NetworkKey(ref(networks), compute_sha256(np.packbits(chosen).tobytes()))
        # Held while a network is built, so that none of this version is built twice at a time.
        with networks.lock:
            network = networks.kept.get(key.chosen)
            if network is None:
                network = networks.kept[key.chosen] = Network(columns, chosen)
            with self._lock:
                try:
                    self._sizes[key] = network.size
                except ValueError:  # it alone is larger than all that may be kept
                    del networks.kept[key.chosen]
        return network


_cache = NetworkCache()


def network_of(columns: GraphColumns, chosen: Bools) -> Network:
    """Return the network of chosen sessions; the last ones asked for are kept as long as the columns."""
    return _cache.read(columns, chosen)
