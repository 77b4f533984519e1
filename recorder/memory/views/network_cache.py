"""Cache of the networks of graphs: one bound for those of all graphs and selections. Spec §4.2."""

import threading
from contextlib import suppress
from typing import Any

import numpy as np
from cachetools import LRUCache

from recorder.hashing import compute_sha256
from recorder.memory.graph.arrays import Bools
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.views.networkx_graph import Network

#: Nodes and edges of all networks that a process keeps: about 250 MB.
_KEPT_SIZE = 400_000


class NetworkCache:
    """The networks that were asked for last, whatever their graphs, up to a number of nodes and edges.

    Those of an older version of a graph are asked for no more, so they are the first to go.
    """

    def __init__(self, max_size: int = _KEPT_SIZE) -> None:
        #: By the lock of a version of a graph, and a digest of the chosen sessions.
        self._kept: LRUCache[tuple[Any, str], Network] = LRUCache(max_size, lambda network: network.size)
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Nodes and edges of the networks that are kept."""
        return int(self._kept.currsize)

    def read(self, columns: GraphColumns, chosen: Bools) -> Network:
        """Return the network of chosen sessions; it is built if it is not kept."""
        building = columns.derive("network lock", lambda _: threading.Lock())
        key = (building, compute_sha256(np.packbits(chosen).tobytes()))
        # Held while a network is built, so that none of this version is built twice at a time.
        with building:
            with self._lock:
                network = self._kept.get(key)
            if network is None:
                network = Network(columns, chosen)
                with self._lock, suppress(ValueError):  # it alone is larger than all that may be kept
                    self._kept[key] = network
        return network


_cache = NetworkCache()


def network_of(columns: GraphColumns, chosen: Bools) -> Network:
    """Return the network of chosen sessions; the last ones asked for are kept."""
    return _cache.read(columns, chosen)
