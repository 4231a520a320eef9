"""The state of a node, or of a group of its sessions, as a worker's process caches it: with the store of its rows."""

from __future__ import annotations

from dataclasses import dataclass

from whimbrel.pipeline.stream.state.blob_store import BlobStore
from whimbrel.pipeline.unit.node_share import NodeShare

__all__ = ["CachedShare"]


@dataclass(slots=True)
class CachedShare:
    """A state, and the store with its rows."""

    store: BlobStore
    state: NodeShare

    @property
    def name(self) -> str:
        """Name of the object in which the state was written last."""
        return self.store.head.version

    @property
    def size_bytes(self) -> int:
        """Size of the state on disk, in bytes."""
        return self.store.size_bytes

    def forget(self) -> None:
        """Do nothing: this state has nothing outside of itself."""
