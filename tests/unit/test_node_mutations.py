"""The list of mutations of the node's code follows that code; to try them all takes minutes (``bench``)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_TOOL = Path(__file__).parents[2] / "bench" / "node_mutations.py"


def test_every_mutation_has_its_text_in_the_code() -> None:
    """A mutation whose text is gone is never tried, and nobody would notice."""
    ended = subprocess.run([sys.executable, str(_TOOL), "--check"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    listed = subprocess.run([sys.executable, str(_TOOL), "--list"], capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == 30
