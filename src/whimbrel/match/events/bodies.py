"""Bodies of publications that are matched as a batch; each body is one row of attributes.

Rule: nothing here loads numba; ``objects`` has the kernel that parses many bodies at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whimbrel.model.attributes import Attributes
from whimbrel.model.codecs import attributes_of

__all__ = ["Bodies"]


class Bodies(Sequence[Attributes]):
    """A sequence of bodies that reads as rows of attributes; each body is parsed when its row is read.

    *given* has the known attributes of some rows, by row number: their bodies are not parsed.
    """

    def __init__(self, bodies: Sequence[bytes], given: Mapping[int, Attributes] | None = None) -> None:
        self._bodies, self.given = bodies, given or {}

    def __len__(self) -> int:
        return len(self._bodies)

    def __getitem__(self, row: Any) -> Any:
        found = self.given.get(row)
        return attributes_of(self._bodies[row]) if found is None else found

    def texts(self) -> Sequence[bytes]:
        """Return the bodies to parse; rows with given attributes have an empty body."""
        if not self.given:
            return self._bodies
        return [b"" if row in self.given else body for row, body in enumerate(self._bodies)]
