"""Make docs/demo.svg: run the demo, and keep its page as it was at the end of the busy time.

Run it when the page changes: ``python tools/picture_of_demo.py``. It takes as long as ``make run`` does.
"""

from __future__ import annotations

import asyncio
import io
import random
import re
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from whimbrel.cli.ward.page import page
from whimbrel.cli.ward.show import Show
from whimbrel.cli.ward.view import View

PICTURE = Path(__file__).parents[1] / "docs" / "demo.svg"
_WIDTH, _HEIGHT = 112, 38
_SECONDS, _PER_S, _SEED = 45.0, 150, 7
# A picture in a README loads nothing from elsewhere: the font is the reader's own.
_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*|<!-- Generated.*?-->\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


async def _last_view(folder: Path) -> View:
    """Return the last moment of a demo in which the ward was busy."""
    show = Show(folder, seconds=_SECONDS, rng=random.Random(_SEED), per_s=_PER_S)  # noqa: S311 # a made-up ward
    running = asyncio.create_task(show.run())
    view = show.view()
    while not running.done():
        await asyncio.sleep(0.25)
        seen = show.view()
        view = seen if seen.phase == "busy" else view
    summary = await running
    assert summary.closes, "a demo whose account does not close is no advertisement"
    return view


def main() -> None:
    """Run the demo and draw it."""
    with tempfile.TemporaryDirectory() as folder:
        view = asyncio.run(_last_view(Path(folder)))
    console = Console(record=True, width=_WIDTH, height=_HEIGHT, file=io.StringIO(), force_terminal=True)
    console.print(page(view, width=_WIDTH, height=_HEIGHT), height=_HEIGHT)
    PICTURE.write_text(console.export_svg(title="make run", code_format=_FORMAT, unique_id="demo"), encoding="utf-8")


if __name__ == "__main__":
    main()
