"""Notices for the operator: lines that the core has the shell write into the process's log."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Notice"]


class Notice(NamedTuple):
    """One line of the process's log, with the client and user that it concerns."""

    text: str
    client: str
    user: str | None
