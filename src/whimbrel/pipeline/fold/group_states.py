"""The state of a checkpoint, split by the groups of sessions that the batch job folds side by side (``components``).

Each group has a file: a worker reads that of the group it folds, whatever becomes of the checkpoint meanwhile.
Rule: a notification that sessions of several groups hold is in the file of each; who received it does no harm there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import cbor2
from pyspark import SparkFiles

from whimbrel.hold.rows import Key
from whimbrel.hold.store.interface import decode_key, encode_key
from whimbrel.pipeline.fold.beginnings import Beginning, Known
from whimbrel.pipeline.fold.components import Components
from whimbrel.pipeline.fold.policies import KeptContent

__all__ = ["GroupState", "write_group_states"]

_OF_SESSION = {"session": 1, "subscription": 1, "member": 1, "pending": 1, "turn": 2}
"""Where the keys of these rows have their session."""
_OF_DEVICE = frozenset({"shaped"})


@dataclass(slots=True)
class GroupState:
    """What a fold of one group begins with."""

    hold: list[tuple[Key, bytes]] = field(default_factory=list)
    known: dict[int, Known] = field(default_factory=dict)
    shaped: dict[int, dict[str, bytes]] = field(default_factory=dict)
    contents: dict[int, KeptContent] = field(default_factory=dict)
    shape: list[tuple[Key, bytes]] = field(default_factory=list)
    decided: int = 0

    @classmethod
    def read(cls, sent: str) -> GroupState:
        """Return the state in a file, as the driver sent it."""
        path = Path(sent if sent.startswith("/") else SparkFiles.get(sent))
        hold, known, shaped, contents, shape, decided = cbor2.loads(path.read_bytes())
        return cls(
            [(decode_key(kind, key), value) for kind, key, value in hold],
            {seq: Known(*told) for seq, told in known.items()},
            shaped,
            {seq: KeptContent(*told) for seq, told in contents.items()},
            [(decode_key(kind, key), value) for kind, key, value in shape],
            decided,
        )

    def write(self, path: Path) -> None:
        """Write it to a file."""
        hold, shape = ([(*encode_key(key), value) for key, value in rows] for rows in (self.hold, self.shape))
        known = {seq: list(each) for seq, each in self.known.items()}
        contents = {seq: list(each) for seq, each in self.contents.items()}
        path.write_bytes(cbor2.dumps([hold, known, self.shaped, contents, shape, self.decided]))


def write_group_states(begun: Beginning, components: Components, folder: Path) -> dict[int, Path]:
    """Write a file for each group that has a session in a checkpoint; return where they are."""
    found: dict[int, GroupState] = {}
    copies: dict[int, bytes] = {}
    moment: list[tuple[Key, bytes]] = []
    for key, value in begun.hold:
        kind = str(key[0])
        if kind == "copy":
            copies[int(str(key[1]))] = value
        elif kind in _OF_SESSION:
            group = components.group(str(key[_OF_SESSION[kind]]))
            found.setdefault(group, GroupState()).hold.append((key, value))
        elif kind in _OF_DEVICE:
            of_device = components.group_of_device(str(key[1]))
            if of_device is not None:
                found.setdefault(of_device, GroupState()).hold.append((key, value))
        else:
            moment.append((key, value))
    paths: dict[int, Path] = {}
    for group, state in found.items():
        held = {int(str(key[2])) for key, _ in state.hold if key[0] == "pending"}
        state.hold += [(("copy", seq), copies[seq]) for seq in sorted(held & copies.keys())] + moment
        state.known = {seq: begun.known[seq] for seq in held & begun.known.keys()}
        state.contents = {seq: begun.contents[seq] for seq in held & begun.contents.keys()}
        # What devices of other groups chose and reported does no harm: nothing is handed over to them here.
        state.shape, state.decided = list(begun.shape), begun.decided
        state.shaped = {seq: dict(begun.shaped[seq]) for seq in held & begun.shaped.keys()}
        paths[group] = folder / f"{uuid4().hex}.state"
        state.write(paths[group])
    return paths
