"""A picture of the demo's page, for documents: `whimbrel demo --picture FILE`.

Rule: the picture refers to no server. The fonts that rich's format would download are left to the reader's machine.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from whimbrel.cli.demo.page import page
from whimbrel.cli.demo.view import DemoSnapshot

__all__ = ["draw_picture"]

_COLUMNS, _ROWS = 100, 40
_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*|<!--.*?-->", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def draw_picture(view: DemoSnapshot, path: Path) -> None:
    """Write a picture (SVG) of the demo's page at the moment *view* to *path*."""
    console = Console(
        record=True, file=io.StringIO(), width=_COLUMNS, height=_ROWS, force_terminal=True, color_system="truecolor",
        legacy_windows=False,
    )  # fmt: skip
    console.print(page(view, width=_COLUMNS, height=_ROWS), end="")
    svg = console.export_svg(title="whimbrel demo", code_format=_FORMAT, unique_id="whimbrel-demo")
    path.write_text(re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE), encoding="utf-8")
