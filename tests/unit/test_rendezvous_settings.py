"""Settings of the daemons: what is read from TOML, and what is refused, with its name and what is allowed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.rendezvous_rig import ALICE

from whimbrel.errors import InvalidValueError
from whimbrel.rendezvous.controller import Note, NoteKind
from whimbrel.rendezvous.daemon.device import TokenFile
from whimbrel.rendezvous.daemon.reporting import MAX_WAITING, BrokerReport
from whimbrel.rendezvous.daemon.settings import BrokerSettings, read_settings
from whimbrel.rendezvous.events import EventId, GroupKey

WHOLE = """
transport = "usb:0"
log = "hall"
name = "whimbrel-controller hall"
node = "hall"
unpaired = "refuse"
link_keys = "keys.json"
metrics_port = 9464
[parameters]
presence_us = 30_000_000
[broker]
host = "broker"
user = "hall"
"""


def write(folder: Path, text: str) -> Path:
    """Write a file of settings."""
    path = folder / "hall.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_settings_are_read_and_options_stand_above_them(tmp_path: Path) -> None:
    """Without park, whatever is not said: real radios have none."""
    settings = read_settings(write(tmp_path, WHOLE), {"transport": "hci-socket:0", "name": None})
    assert (settings.transport, settings.name) == ("hci-socket:0", "whimbrel-controller hall")
    assert (settings.parameters.presence_us, settings.parameters.has_park) == (30_000_000, False)
    assert settings.broker == BrokerSettings(host="broker", user="hall")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "transport: found nothing, allowed is a value, by --transport"),
        ('name = "hall"', "a name that begins with 'whimbrel-controller'"),
        ('colour = "blue"', "setting colour"),
        ("[parameters]\ncolour = 1", "setting parameters.colour"),
        ("[parameters]\nhas_park = true", "real radios have had no park"),
        ("[parameters]\npresence_us = 0", "presence_us"),
        ("parameters = 3", "parameters: found an integer"),
        ('dumb = "headset"', "dumb: found text, allowed is a list of DUMB=SMART"),
        ('dumb = ["headset"]', "dumb: found 'headset', allowed is DUMB=SMART"),
        ('dumb = ["00:00:00:00:00:0D=phone"]', "six pairs of hexadecimal digits"),
        ('dumb = ["00:00:00:00:00:0D=00:00:00:00:00:0A"]', "with --transport usb:0, and no adapter can answer"),
        ('unpaired = "maybe"', "accept, refuse, pair"),
        ('unpaired = "refuse"', "link_keys: found nothing"),
        ("log = 3", "log: found an integer"),
        ("metrics_port = 70000", "metrics_port"),
        ("[broker]\nport = 1", "broker.host"),
        ('[broker]\nhost = "x"\npassword_file = "y"', "broker.user beside it"),
        ("name = ", "no TOML"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(tmp_path: Path, text: str, why: str) -> None:
    """An operator reads the message, not the code."""
    given = {} if not text else {"transport": "usb:0", **({} if "log" in text else {"log": "x"})}
    with pytest.raises(InvalidValueError, match=re.escape(why)):
        read_settings(write(tmp_path, text), given)


def test_tokens_of_a_device_are_kept_in_a_file(tmp_path: Path) -> None:
    """One that is issued over the air is there in the next run; a broken line is refused."""
    path, group = tmp_path / "tokens", GroupKey(b"g" * 32)
    TokenFile(path).keep(group, b"token")
    assert TokenFile(path).tokens == {group: b"token"}
    path.write_text("nonsense\n", encoding="ascii")
    with pytest.raises(InvalidValueError, match="line 1 of"):
        TokenFile(path)


def test_a_token_is_on_the_disk_before_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner issues it once: a power cut must not take it."""
    synced: list[bytes] = []
    path = tmp_path / "tokens"
    monkeypatch.setattr("whimbrel.rendezvous.daemon.device.os.fsync", lambda _file: synced.append(path.read_bytes()))
    TokenFile(path).keep(GroupKey(b"g" * 32), b"token")
    assert synced[0] == path.read_bytes() != b""


def test_facts_that_wait_for_a_broker_are_bounded() -> None:
    """The oldest are dropped and counted: the log has them."""
    report = BrokerReport(BrokerSettings(host="x"), client_id="x", told=lambda _line: None)
    for number in range(MAX_WAITING + 3):
        report.put(Note(kind=NoteKind.OPENED, id=EventId(f"P{number + 1}"), address=ALICE))
    assert (report.waiting, report.dropped) == (MAX_WAITING, 3)
