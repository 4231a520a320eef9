"""Checks: what was looked at, what was found, and what to do if that is not what is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Check", "Verdict", "counted", "failed", "ok", "sized", "warning"]


class Verdict(Enum):
    """What became of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check; a remedy is given where it is not ok."""

    name: str
    verdict: Verdict
    found: str
    wanted: str = ""
    remedy: str = ""


def ok(name: str, found: str, wanted: str = "") -> Check:
    """Return that all is well."""
    return Check(name=name, verdict=Verdict.OK, found=found, wanted=wanted)


def warning(name: str, found: str, wanted: str, remedy: str) -> Check:
    """Return that it works, but not as it should."""
    return Check(name=name, verdict=Verdict.WARNING, found=found, wanted=wanted, remedy=remedy)


def failed(name: str, found: str, wanted: str, remedy: str) -> Check:
    """Return that it does not work, or will not for long."""
    return Check(name=name, verdict=Verdict.FAILED, found=found, wanted=wanted, remedy=remedy)


def counted(number: int, what: str) -> str:
    """Return a number with its noun: 1 node, 2 nodes."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def sized(size_bytes: float) -> str:
    """Return a size as people write it."""
    for unit in ("B", "KB", "MB", "GB"):
        if size_bytes < 1_000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" or size_bytes >= 10 else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1_000
    return f"{size_bytes:,.1f} TB"
