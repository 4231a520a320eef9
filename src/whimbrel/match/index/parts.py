"""Parts: filters to be packed into a new segment, as flat arrays only, so that another process can do the packing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from whimbrel.match.index.texts import Texts

__all__ = ["Part"]


class Part(NamedTuple):
    """Filters for a new segment: ascending handles, texts in one buffer, and in *dead* a 1 for each removed filter."""

    handles: Any
    text_bytes: Any
    text_start: Any
    dead: Any

    @classmethod
    def of(cls, filters: Sequence[tuple[int, str]]) -> Part:
        """Return a ``Part`` with *filters*, pairs of handle and text, of which none is removed; handles must ascend."""
        texts = Texts()
        for _, text in filters:
            texts.append(text)
        handles = np.fromiter((handle for handle, _ in filters), np.int64, len(filters))
        return cls(handles, **texts.arrays(), dead=np.zeros(len(filters), np.uint8))

    def living(self) -> Iterator[tuple[int, str]]:
        """Yield handle and text of each filter that is not removed."""
        texts = Texts.of(self.text_bytes, self.text_start)
        for position in np.flatnonzero(self.dead == 0).tolist():
            yield int(self.handles[position]), texts[position]
