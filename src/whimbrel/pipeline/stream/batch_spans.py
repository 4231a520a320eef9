"""The spans of a batch: which seqs of each node's log it has.

A batch has at most ``facts_per_batch`` facts of all nodes together, and each node with new facts gets a share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from whimbrel.hold.store.interface import NOTHING_APPLIED

__all__ = ["next_ends", "spans"]


def spans(start: Mapping[str, int], end: Mapping[str, int]) -> list[tuple[str, int, int, int]]:
    """Return (node, first new seq, last new seq, number of nodes in *end*), for each node with new seqs."""
    return [
        (node, start.get(node, NOTHING_APPLIED) + 1, last, len(end))
        for node, last in sorted(end.items())
        if last > start.get(node, NOTHING_APPLIED)
    ]


def next_ends(
    start: Mapping[str, int], last: Mapping[str, int], most: int, first_of: Callable[[str], int] | None = None
) -> dict[str, int]:
    """Return the end offset of the batch after *start*: at most *most* facts of all nodes, shared fairly.

    *last* has the last seq of each node. *first_of* is called for a node that is new to the stream, and returns the
    first seq of it that the tables cover: seqs that were cut before are not counted. A node without any later seq gets
    no share.
    """
    begin: dict[str, int] = {}
    for node, seq in last.items():
        applied = start.get(node, NOTHING_APPLIED)
        if applied < seq:
            first = first_of(node) if first_of is not None and applied == NOTHING_APPLIED else applied + 1
            if first <= seq + 1:
                begin[node] = first
    new = {node: max(1, last[node] - first + 1) for node, first in begin.items()}
    end = {node: start.get(node, NOTHING_APPLIED) for node in {**start, **last}}
    left = most
    # Nodes with the fewest new facts come first: the rest of their shares goes to the nodes with more.
    for place, node in enumerate(sorted(new, key=lambda each: (new[each], each))):
        share = max(1, -(-left // (len(new) - place)))
        taken = min(new[node], share)
        if left <= 0:
            break
        end[node] = min(last[node], begin[node] + taken - 1)
        left -= taken
    return end
