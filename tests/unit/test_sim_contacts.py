"""Contacts: exact crossings by hand, traces in the ONE's format, statistics."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from whimbrel.errors import MalformedLineError
from whimbrel.sim.contacts.crossings import contacts_of
from whimbrel.sim.contacts.statistics import contact_statistics
from whimbrel.sim.contacts.table import Contacts
from whimbrel.sim.contacts.traces import read_trace, trace_lines, trace_of
from whimbrel.sim.mobility.walks import Walks


def spans(lines: str) -> list[tuple[float, float, int, int]]:
    """Return the contacts of a trace."""
    return trace_of(lines.splitlines(), source="trace").contacts.rows()


def test_two_who_pass_each_other_meet_when_their_distance_is_the_range() -> None:
    """Towards each other at 2 m/s, 6 m beside: in range of 10 m from 8 m before to 8 m after the middle."""
    walks = Walks.of([[(0, 0, 0), (100, 100, 0)], [(0, 100, 6), (100, 0, 6)]], seconds=100)
    [(start, end, low, high)] = contacts_of(walks, range_m=10).rows()
    assert (start, end) == pytest.approx((46, 54))
    assert (low, high) == (0, 1)


def test_a_contact_goes_on_around_a_corner() -> None:
    """Pieces that meet at a corner are one contact; it ends with the time that is simulated."""
    one = [(0.0, 0.0, 0.0), (10.0, 5.0, 0.0), (20.0, 5.0, 0.0), (40.0, 5.0, 20.0)]
    walks = Walks.of([one, [(0, 0, 0), (40, 0, 0)]], seconds=30)
    [(start, end, *_)] = contacts_of(walks, range_m=8).rows()
    assert (start, end) == pytest.approx((0, 20 + math.sqrt(64 - 25)))


def test_directed_sightings_are_united() -> None:
    """A pair is in contact while either sees the other; a contact of no length is one."""
    text = "0 CONN 1 2 up\n5 CONN 2 1 up\n7 CONN 3 1 up\n7 CONN 3 1 down\n10 CONN 1 2 down\n20 CONN 2 1 down"
    assert spans(text) == [(0, 20, 0, 1), (7, 7, 0, 2)]


def test_a_link_may_go_down_under_either_name() -> None:
    """The ONE writes the one that noticed first, which may be another than at the beginning."""
    assert spans("0 CONN 1 2 up\n9 CONN 2 1 down") == [(0, 9, 0, 1)]


def test_two_interfaces_are_one_contact(tmp_path: Path) -> None:
    """Which radio it was does not matter; a mark of the byte order or line ends of another system do not, either."""
    file = tmp_path / "two.trace"
    lines = ["0 CONN 1 2 up bt", "1 CONN 1 2 up wifi", "5 CONN 1 2 down bt", "8 CONN 2 1 down wifi"]
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert read_trace(file).contacts.rows() == [(0, 8, 0, 1)]


def test_what_is_up_at_the_end_lasts_until_then_and_comments_say_nothing() -> None:
    """And a pair whose contact ended and began in one instant never parted."""
    text = "# made by hand\n\n3 CONN a b up\n5 CONN a b down\n5 CONN b a up\n8 CONN a c up\n9 CONN a c DOWN\n"
    trace = trace_of(text.splitlines(), source="trace")
    assert trace.names == ("a", "b", "c")
    assert trace.contacts.rows() == [(0, 6, 0, 1), (5, 6, 0, 2)]
    assert (trace.first_s, trace.contacts.seconds) == (3, 6)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("4 CONN 1 2 down", "line 2, column 1: found the time 4 after 5; times must not run backwards"),
        ("6 CONNECT 1 2 up", "found the verb 'CONNECT', allowed is CONN"),
        ("6 CONN 1 2 sideways", "found 'sideways', allowed is up or down"),
        ("6 CONN 1 3 down", "found 1 3 down, which was not up"),
        ("6 CONN 3 3 up", "found node 3 in contact with itself"),
        ("6 CONN 1 2", "found 4 words, allowed are: time CONN node node up|down [interface]"),
        ("soon CONN 1 2 up", "found the time 'soon', allowed is a number of seconds from 0 to 1e+12"),
        ("nan CONN 1 2 up", "found the time 'nan'"),
        ("inf CONN 1 2 up", "found the time 'inf'"),
        ("-1 CONN 1 2 up", "found the time '-1'"),
        ("1_0 CONN 1 2 up", "found the time '1_0'"),
        ("\u0661\u0660 CONN 1 2 up", "found the time '\u0661\u0660'"),
        ("0x10 CONN 1 2 up", "found the time '0x10'"),
    ],
)
def test_a_bad_line_is_named_with_its_reason(tmp_path: Path, line: str, reason: str) -> None:
    """File, line, reason: whoever has a trace of a million lines must find it."""
    file = tmp_path / "bad.trace"
    file.write_text(f"5 CONN 1 2 up\n{line}\n")
    with pytest.raises(MalformedLineError) as caught:
        read_trace(file)
    assert str(caught.value).startswith(f"{file}: line 2, column 1: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize("lines", [[], ["# nothing"]])
def test_an_empty_trace_is_refused(lines: list[str]) -> None:
    """There is nothing to simulate; the first line is where a contact is missed."""
    with pytest.raises(MalformedLineError, match="line 1, column 1: there is no contact"):
        trace_of(lines, source="trace")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (gzip.compress(b"0 CONN 1 2 up\n", mtime=0), "line 1, column 1: the file is compressed; unpack it first"),
        (b"PK\x03\x04" + bytes(50), "line 1, column 1: the file is compressed; unpack it first"),
        (b"0 CONN 1 2 up\n" + bytes(9), "line 2, column 1: found a byte 0; allowed is text in UTF-8"),
        ("0 CONN 1 2 up\n".encode("utf-16"), "line 1, column 1: found a byte 0; allowed is text in UTF-8"),
        (b"0 CONN 1 2 up" + b" " * 2_000, "line 1, column 1001: longer than the 1000 characters allowed"),
    ],
)
def test_a_file_that_is_no_text_is_named_as_what_it_is(tmp_path: Path, data: bytes, reason: str) -> None:
    """A slip of the hand is answered with what to do."""
    file = tmp_path / "no.trace"
    file.write_bytes(data)
    with pytest.raises(MalformedLineError) as caught:
        read_trace(file)
    assert str(caught.value) == f"{file}: {reason}"


def test_a_line_without_an_end_is_not_read_to_its_end() -> None:
    """A file of gigabytes without a line feed, or a device without an end, must not fill the memory."""
    with pytest.raises(MalformedLineError, match="longer than the 1000 characters allowed"):
        read_trace(Path("/dev/zero"))


def test_nodes_are_told_apart_by_their_text() -> None:
    """Numbers sort as numbers; -0, 00 and 1e9 are names like any other."""
    trace = trace_of(["0 CONN -0 1e9 up", "1 CONN 10 9 up", "2 CONN 00 0 up"], source="trace")
    assert trace.names == ("0", "00", "9", "10", "-0", "1e9")


def test_contacts_survive_a_trace_and_a_file(tmp_path: Path) -> None:
    """Written, read and the same; also those of no length."""
    contacts = Contacts.of([(0.5, 2.25, 0, 1), (1, 1, 1, 2), (3, 9.125, 0, 1)], nodes=3, seconds=9.125)
    assert trace_of(trace_lines(contacts), source="trace").contacts.rows() == [
        (start - 0.5, end - 0.5, low, high) for start, end, low, high in contacts.rows()
    ]
    contacts.save(tmp_path / "contacts.npz")
    assert Contacts.load(tmp_path / "contacts.npz").rows() == contacts.rows()


def test_a_radio_that_looks_seldom_sees_contacts_late_or_never() -> None:
    """How often a contact is looked at is a part of a transfer model."""
    contacts = Contacts.of([(0.2, 4, 0, 1), (0.4, 0.8, 1, 2), (2, 3, 0, 2)], nodes=3, seconds=5)
    assert contacts.looked_at(1).rows() == [(1, 4, 0, 1), (2, 3, 0, 2)]
    assert contacts.looked_at(0).rows() == contacts.rows()


def test_statistics_of_contacts_by_hand() -> None:
    """One pair of three: contacts of 2 s and 4 s, with 10 s between."""
    contacts = Contacts.of([(1, 3, 0, 1), (13, 17, 0, 1)], nodes=3, seconds=20)
    found = contact_statistics(contacts)
    assert (found.contacts, found.contact_rate_s, found.contact_mean_s) == (2, 30, 3)
    assert found.intercontact_mean_s == 10
    assert found.meeting_time_s == pytest.approx(100 / 2 / 12)
    assert contact_statistics(Contacts.of([], nodes=3, seconds=20)).contact_mean_s is None
