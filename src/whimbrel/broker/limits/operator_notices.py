"""Notices for the operator: what the core has the shell write into the log of the process."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Notice"]


class Notice(NamedTuple):
    """One line, and the client and user that it concerns."""

    text: str
    client: str
    user: str | None
