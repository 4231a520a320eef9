"""Starts and clocks: a producer is heard again after any restart, and clocks that disagree are told on both sides."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.nearby_rig import Street, at
from tests.unit.test_nearby_signed import AMBULANCE, TRUE, Tape, announce, days_later, run, station, with_key

from whimbrel.cli.main import main
from whimbrel.errors import InvalidValueError
from whimbrel.nearby.frames.values import Beacon, Objection
from whimbrel.nearby.frames.wire import decode, encode
from whimbrel.nearby.group.outputs import NoteKind
from whimbrel.nearby.transport.starts import count_start, first_seq_of

__all__ = ["days_later"]


class _Link(Tape):
    """A tape that a daemon can open: with a socket that nobody sends to."""

    made: list[_Link] = []  # noqa: RUF012 # the command makes it

    def __init__(self, _interface: str, *, port: int = 0) -> None:
        super().__init__()
        del port
        self.socket = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self.made.append(self)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def _beacon_of_a_run(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Beacon:
    """Run ``whimbrel nearby announce`` for a moment and return the first beacon that it sent."""
    (folder / "words.json").write_text('{"traffic light": {"status": "string"}}', encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr("whimbrel.nearby.transport.multicast.MulticastSocket", _Link)
    command = "nearby announce|traffic light|--vocabulary words.json --name light --place 1,1 --radius 100"
    words = [each for part in command.split("|") for each in ([part] if part == "traffic light" else part.split())]
    monkeypatch.setattr(sys, "argv", ["whimbrel", *words, "--interface", "none", "--seconds", "0.1"])
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    beacon = decode(_Link.made[-1].sent[0])
    assert isinstance(beacon, Beacon)
    return beacon


def test_an_announcement_is_later_than_the_last_whatever_the_clock_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, days_later: Callable[[float], None]
) -> None:
    """A producer whose clock went back was ignored for good by all who knew it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    first = _beacon_of_a_run(monkeypatch, tmp_path)
    days_later(-400 * 86_400)
    second = _beacon_of_a_run(monkeypatch, tmp_path)
    assert second.epoch > first.epoch
    assert second.seq > first.seq


def test_clocks_that_disagree_are_told_on_both_sides(days_later: Callable[[float], None]) -> None:
    """The consumer that refuses a frame tells its producer, whose clock may be the wrong one."""

    def play() -> None:
        days_later(7_200)
        light = station("ambulance", signer=TRUE)
        announce(light)
        days_later(0)
        car = station("car", 10, trusted={TRUE.public: None}, **with_key())
        car.node.subscribe(AMBULANCE)
        for _ in range(3):
            car.daemon.receive(light.tape.sent[0])
        days_later(7_200)
        for data in car.tape.sent:
            light.daemon.receive(data)
        assert light.kinds() == ["clocks differ, or a frame was sent again"]
        (told,) = light.notes
        assert (told.member, round(told.seconds or 0, -1)) == ("car", -7_200)
        assert {round(note.seconds or 0, -1) for note in car.notes} == {7_200}
        assert len(car.tape.sent) == 1  # once in three periods, however often it is sent again

        objection = decode(car.tape.sent[0])
        assert isinstance(objection, Objection)
        for number in range(200):
            light.daemon.receive(encode(replace(objection, sender=f"x{number}")))
        assert len(light.notes) == 1  # nobody signs an objection, so forged ones fill no log

    run(play)


def test_a_producer_that_lost_its_count_is_told_on_both_sides() -> None:
    """Who knows a later announcement does not join; both logs say why, once the later one is silent."""
    street = Street()
    street.add("ambulance", at(0), first_seq=1_000_000)
    street.announce("ambulance", "ambulance")
    street.add("car", at(10)).subscribe(AMBULANCE)
    street.run(1.5)
    street.add("ambulance", at(0), first_seq=0)
    street.announce("ambulance", "ambulance")
    street.run(2)
    assert NoteKind.EARLIER not in street.kinds("car")
    street.run(5)
    for name in ("car", "ambulance"):
        told = [(note.member, note.group.producer) for who, note in street.notes if who == name][-1]
        assert street.kinds(name)[-1] is NoteKind.EARLIER
        assert told == ("ambulance" if name == "car" else "car", "ambulance")
    objections = [frame for who, frame in street.sent if who == "car" and isinstance(frame, Objection)]
    assert 1 <= len(objections) <= 2


@pytest.mark.parametrize("text", ["", "soon", "-3", "9" * 30, "\u0663"])
def test_a_count_that_cannot_be_read_ends_the_command(tmp_path: Path, text: str) -> None:
    """Beginning anew would make the node be ignored: it says which file is wrong."""
    (tmp_path / "light.start").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidValueError, match=r"light\.start"):
        count_start("light", tmp_path)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InvalidValueError, match="--state names another folder"):
        count_start("light", tmp_path / "file" / "below")


def test_a_count_is_kept_in_its_folder(tmp_path: Path) -> None:
    """A name that is none of ours names no file elsewhere."""
    for name in ("../light", "a/b", "", "."):
        with pytest.raises(InvalidValueError, match="letters, digits"):
            count_start(name, tmp_path / "state")
    assert not list(tmp_path.iterdir())


def test_every_start_has_numbers_of_its_own(tmp_path: Path) -> None:
    """2,147,483,648 frames fit one."""
    starts = [count_start("light", tmp_path) for _ in range(3)]
    assert starts == list(range(starts[0], starts[0] + 3))
    assert first_seq_of(starts[1]) - first_seq_of(starts[0]) == 2**31
    assert starts[0] >= time.time() // 60 - 1
