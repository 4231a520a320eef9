"""Checks: the result type of the doctor's checks, and functions that build results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Check", "Verdict", "failure", "ok", "warning", "with_noun", "with_unit"]


class Verdict(Enum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: its subject, its verdict, what was found and what is needed; a remedy unless the verdict is ok."""

    name: str
    verdict: Verdict
    found: str
    wanted: str = ""
    remedy: str = ""


def ok(name: str, found: str, wanted: str = "") -> Check:
    """Return a check with the verdict ok."""
    return Check(name=name, verdict=Verdict.OK, found=found, wanted=wanted)


def warning(name: str, found: str, wanted: str, remedy: str) -> Check:
    """Return a check with a warning: the checked thing works, but not as it should."""
    return Check(name=name, verdict=Verdict.WARNING, found=found, wanted=wanted, remedy=remedy)


def failure(name: str, found: str, wanted: str, remedy: str) -> Check:
    """Return a failed check: the checked thing does not work, or will soon stop working."""
    return Check(name=name, verdict=Verdict.FAILED, found=found, wanted=wanted, remedy=remedy)


def with_noun(number: int, what: str) -> str:
    """Return a number with its noun in singular or plural: 1 node, 2 nodes."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def with_unit(size_bytes: float) -> str:
    """Return a size with its unit, such as 1.5 MB."""
    for unit in ("B", "KB", "MB", "GB"):
        if size_bytes < 1_000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" or size_bytes >= 10 else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1_000
    return f"{size_bytes:,.1f} TB"
