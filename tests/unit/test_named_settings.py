"""Settings that the pages name: each exists, and none that exists is called missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from whimbrel.broker.config import SECTIONS
from whimbrel.broker.settings.fields import settings_of
from whimbrel.broker.settings.listeners import ListenerSettings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "deploy").iterdir())]
SETTINGS = {f"{section}.{key}" for section, kind in SECTIONS.items() for key in settings_of(kind)}
KEYS = {name.partition(".")[2] for name in SETTINGS} | set(settings_of(ListenerSettings))
_NAMED = re.compile(rf"(?<!`)`((?:{'|'.join(SECTIONS)})\.(?!py`)[a-z_0-9]+)\b(?![.(/])")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_setting_that_a_page_names_exists(page: Path) -> None:
    """A reader who copies it would be told that there is none."""
    named = set(_NAMED.findall(page.read_text(encoding="utf-8")))
    assert named <= SETTINGS, named - SETTINGS


def test_no_option_of_mosquitto_is_called_missing_that_is_there() -> None:
    """A page that says no to what a user needs sends the user away."""
    page = (ROOT / "docs" / "how-to" / "from-mosquitto.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*) \| (not there|no|not yet)[^|]* \|", page, flags=re.MULTILINE)
    missing = {name for names, _ in rows for name in re.findall(r"`([a-z_]+)`", names)}
    assert len(missing) > 10
    assert not missing & KEYS
