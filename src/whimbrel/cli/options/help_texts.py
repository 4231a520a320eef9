"""Help texts: examples that can be copied into a shell, and complete sentences in lists of commands.

Help texts are wrapped at words, but a shell would take the second line of a wrapped command for another command. So the
lines of an example are broken between its arguments, after a backslash.
"""

from __future__ import annotations

import re

__all__ = ["in_short", "with_whole_examples"]

_MARK = "Example: "
_VERBATIM = "\b\n"
"""Marker for click: the lines of the paragraph that follows are kept as they are."""
_WIDTH = 76
_SHORT, _SHORTEST = 60, 15
_INDENT = 4 * " "
_PART = re.compile(r"""(?:--[a-z-]+\s+(?=[^-\s]))?(?:[^\s'"]|'[^']*'|"[^"]*")+""")
"""Pattern of a shell word with its quotes; an option matches together with its value."""


def with_whole_examples(text: str) -> str:
    """Return the help *text* with the lines of its examples broken between arguments."""
    return "\n\n".join(_whole(each) if each.startswith(_MARK) else each for each in text.split("\n\n"))


def in_short(text: str) -> str | None:
    """Return the beginning of the help *text* that fits into a list of commands, cut at a comma or colon, or None."""
    sentence = " ".join(text.partition("\n\n")[0].split())
    if len(sentence) <= _SHORT:
        return None
    ends = [found.start() for found in re.finditer(r"[,:;]| \(", sentence) if _SHORTEST <= found.start() < _SHORT]
    return f"{sentence[: ends[-1]]}." if ends else None


def _whole(paragraph: str) -> str:
    lines, line = [], ""
    for part in (" ".join(each.split("\n")) for each in _PART.findall(paragraph)):
        if line.strip() and len(line) + len(part) + len("  \\") > _WIDTH:
            lines.append(f"{line} \\")
            line = _INDENT + part
        else:
            line = f"{line} {part}" if line else part
    return _VERBATIM + "\n".join([*lines, line])
