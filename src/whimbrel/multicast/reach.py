"""Simulated reach: which senders a node hears, on a link on which it would hear all."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import real

__all__ = ["Reach"]


class Reach:
    """Decides which senders a node hears, for tests, demonstrations and experiments on one machine.

    The file is JSON, ``{"car": ["light", "ambulance"]}``: it maps a node to the nodes that it hears; a node without an
    entry hears all. The file is read again when it changes, so that a partition can be started and ended.
    """

    def __init__(self, name: str, *, path: Path | None = None, loss: float = 0.0, random: Random | None = None) -> None:
        self._name, self._path = name, path
        self._loss = real("loss", loss, 0, 1)
        self._random = random or Random(0)  # noqa: S311 # it only chooses lost frames of a demonstration
        self._heard: frozenset[str] | None = None
        self._changed = -1
        self.refresh()

    def refresh(self) -> None:
        """Read the file if it has changed."""
        if self._path is None:
            return
        try:
            changed = self._path.stat().st_mtime_ns
            if changed == self._changed:
                return
            tree = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidValueError("reach", str(self._path), f"JSON of the nodes each node hears ({error})") from None
        if not isinstance(tree, dict):
            raise InvalidValueError("reach", str(self._path), "an object of JSON with a list of nodes for each node")
        for name, nodes in tree.items():
            if not isinstance(nodes, list) or not all(isinstance(each, str) for each in nodes):
                raise InvalidValueError(f"reach of {name}", nodes, "a list of nodes")
        heard = tree.get(self._name)
        self._heard = None if heard is None else frozenset(heard)
        self._changed = changed

    def hears(self, sender: str) -> bool:
        """Return whether a datagram of *sender* arrives; draws the loss."""
        if self._heard is not None and sender not in self._heard:
            return False
        return not self._loss or self._random.random() >= self._loss
