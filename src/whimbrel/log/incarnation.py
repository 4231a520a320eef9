"""The incarnation of a node's log: 64 random bits that distinguish it from other logs of a node with the same name.

A log gets a new incarnation when its folder is empty, after a restore, and when an operator accepts that records are
lost. From then on the node may give other facts the seqs that readers have seen already. A reader stores the
incarnation with the last seq it has read, and refuses to continue with a log of another incarnation.
Rule: the file is beside the segments and is created when a log is first opened for writing. Exports copy it; backups
do not, so a restored log gets a new incarnation.
Rule: a log that an older Whimbrel wrote has no incarnation until a newer Whimbrel opens it.
"""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path

from whimbrel.log import layout
from whimbrel.log.errors import CorruptLogError, LogError
from whimbrel.log.files import put

__all__ = ["OtherIncarnationError", "copy_incarnation", "ensure_incarnation", "incarnation", "renew_incarnation"]

_FILE, _NAME = "incarnation.json", "incarnation"
_ALLOWED = re.compile(r"[0-9a-f]{16}")
_MAX_BYTES = 4_096


class OtherIncarnationError(LogError):
    """The export folder has rows of another log of a node with this name. Reaction: export to another folder."""

    def __init__(self, target: Path, node: str, found: str, wanted: str) -> None:
        super().__init__(target, node, found, wanted)
        self.target, self.node, self.found, self.wanted = target, node, found, wanted

    def __str__(self) -> str:
        return (
            f"{self.target}: has rows of another log of {self.node} (incarnation {self.found}, not {self.wanted}): "
            "the node was set up anew, restored, or started with --accept-loss; export to another folder"
        )


def incarnation(directory: Path, node: str) -> str | None:
    """Return the incarnation of *node*'s log, 16 hexadecimal digits; None if it has none."""
    path = _path(directory, node)
    try:
        with path.open("rb") as stream:
            found: object = json.loads(stream.read(_MAX_BYTES))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        found = None
    told = found.get(_NAME) if isinstance(found, dict) else None
    if not isinstance(told, str) or not _ALLOWED.fullmatch(told):
        raise CorruptLogError(path, 0, f'found no incarnation, allowed is {{"{_NAME}": 16 hexadecimal digits}}')
    return told


def ensure_incarnation(directory: Path, node: str) -> str:
    """Return the incarnation of *node*'s log; assign one if it has none."""
    found = incarnation(directory, node)
    return renew_incarnation(directory, node) if found is None else found


def renew_incarnation(directory: Path, node: str) -> str:
    """Assign *node*'s log a new incarnation, and return it."""
    new = secrets.token_hex(8)
    _put(directory, node, new)
    return new


def copy_incarnation(directory: Path, target: Path, node: str) -> None:
    """Copy the incarnation of *node*'s log in *directory* to *target*, a folder with exports of *node*.

    Raise ``OtherIncarnationError`` if *target* has another incarnation.
    """
    wanted, found = incarnation(directory, node), incarnation(target, node)
    if wanted is not None and found is not None and wanted != found:
        raise OtherIncarnationError(target, node, found, wanted)
    if wanted is not None and found is None:
        _put(target, node, wanted)


def _put(directory: Path, node: str, told: str) -> None:
    put(_path(directory, node), json.dumps({_NAME: told}).encode() + b"\n")


def _path(directory: Path, node: str) -> Path:
    return layout.segments_folder(directory, node) / _FILE
