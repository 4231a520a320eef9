"""Settings and commands that the pages name: each exists, and none that exists is called missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from whimbrel.broker.settings.config import SECTIONS
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


# -- commands --------------------------------------------------------------------------------------------------------

_SECTION = re.compile(r"^## (?P<command>whimbrel[^\n]*)\n\n```text\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^```(?:sh|console)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`(whimbrel [^`\n]+)`")
_OPTION = re.compile(r"(?<![\w'\"-])--?[a-z][a-z-]*")


_HIDDEN = {"whimbrel demo": {"--picture"}}
"""Options for our own documents, which no help has."""


def _reference() -> dict[str, set[str]]:
    """Return the options of each command, as its ``--help`` has them."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    return {found["command"]: set(_OPTION.findall(found["text"])) for found in _SECTION.finditer(page)}


def _named_commands(text: str) -> Iterator[str]:
    for block in _FENCE.finditer(text):
        for line in block["text"].replace("\\\n", " ").splitlines():
            found = re.match(r"(?:\$ )?(?:\S*/)?(whimbrel .*)", line)
            if found:
                yield found[1]
    yield from _INLINE.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_command_that_a_page_names_exists_with_its_options(page: Path) -> None:
    """Also in blocks that are not run, because they need a cluster, a minute or a disk of one's own."""
    commands = _reference()
    for line in _named_commands(page.read_text(encoding="utf-8")):
        bare = re.sub(r"'[^']*'|\"[^\"]*\"", "''", re.sub(r" #.*| [|>&].*", "", line))
        words = bare.split()
        command = next((each for n in (4, 3, 2, 1) if (each := " ".join(words[:n])) in commands), "")
        assert command not in {"", "whimbrel"} or len(words) == 1 or words[1].startswith(("-", "…")), line
        unknown = set(_OPTION.findall(" ".join(words))) - commands.get(command, set()) - _HIDDEN.get(command, set())
        assert not unknown, f"{line}: {command} has no {unknown}"


def test_every_client_command_speaks_tls() -> None:
    """A broker with certificates is of no use to a command that cannot give one."""
    wanted = {"--tls", "--tls-ca", "--tls-certificate", "--tls-key", "--tls-server-name", "--user", "--password-file"}
    asking = {command: options for command, options in _reference().items() if {"--host", "--retry"} <= options}
    assert {
        "whimbrel publish",
        "whimbrel session join",
        "whimbrel clients list",
        "whimbrel policy put",
    } <= asking.keys()
    assert {command: wanted - options for command, options in asking.items() if not wanted <= options} == {}


def test_every_duration_may_have_a_unit() -> None:
    """An option that wants plain seconds would be the one that a user gives as 15m."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert not re.findall(r"--[a-z-]+ (?:\S*\|)?SECONDS", page)


@pytest.mark.parametrize("name", ["Containerfile", "kubernetes.yaml", "whimbrel.service"])
def test_what_a_deployment_runs_exists_with_its_options(name: str) -> None:
    """No container engine and no cluster is at hand to find out."""
    text = re.sub(r'"(?:, ?|\])', " ", (ROOT / "deploy" / name).read_text(encoding="utf-8")).replace('["', "")
    commands, found = _reference(), 0
    for line in text.splitlines():
        given = re.search(r"(?:^ENTRYPOINT |/bin/|^RUN |^# +)(whimbrel [a-z].*)|^ +args: (.*)", line.replace('"', ""))
        if given is None:
            continue
        words = re.sub(r" && .*", "", given[1] or f"whimbrel serve {given[2]}").split()
        command = next(each for n in (3, 2) if (each := " ".join(words[:n])) in commands)
        assert set(_OPTION.findall(" ".join(words))) <= commands[command], line
        found += 1
    assert found >= 2
