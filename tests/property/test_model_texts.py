"""Ids, keys, times and reports: texts come back, and any text gives a value or our error."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from whimbrel.errors import InvalidInputError
from whimbrel.model.clock import format_time, is_alive, microseconds, parse_time, seconds
from whimbrel.model.device import DeviceState
from whimbrel.model.keys import KeyHash, KeyHashes, Scheme
from whimbrel.model.notification import NotificationId
from whimbrel.model.place import Area, Place

YEAR_1_US, YEAR_9999_US = -62_135_596_800_000_000, 253_402_300_799_999_999
DIGESTS = st.binary(min_size=20, max_size=20) | st.binary(min_size=32, max_size=32)
KEYS = st.frozensets(st.builds(KeyHash, st.sampled_from(Scheme), DIGESTS), max_size=5).map(KeyHashes)


@given(node=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True), seq=st.integers(0, 2**63 - 1))
def test_an_id_comes_back_from_its_text(node: str, seq: int) -> None:
    """And only from that text: one spelling per id."""
    identity = NotificationId(node, seq)
    assert NotificationId.parse(str(identity)) == identity


@given(time_us=st.integers(YEAR_1_US, YEAR_9999_US), other_us=st.integers(YEAR_1_US, YEAR_9999_US))
def test_a_time_comes_back_from_its_text_and_sorts_with_it(time_us: int, other_us: int) -> None:
    """To the microsecond, before 1970 too."""
    assert parse_time(format_time(time_us)) == time_us
    assert (format_time(time_us) < format_time(other_us)) == (time_us < other_us)


@given(duration_us=st.integers(-(2**52), 2**52))
def test_microseconds_survive_the_edge(duration_us: int) -> None:
    """142 years in seconds and back, exactly."""
    assert microseconds(seconds(duration_us)) == duration_us


@given(expires_at=st.integers(), now=st.integers())
def test_alive_means_before(expires_at: int, now: int) -> None:
    """Dead stays dead: if it is alive later, it is alive now."""
    assert is_alive(expires_at, now=now) == (now < expires_at)
    assert is_alive(expires_at, now=now) or not is_alive(expires_at, now=now + 1)


@given(keys=KEYS)
def test_keys_come_back_from_their_texts(keys: KeyHashes) -> None:
    """The command line shows and takes the same words."""
    assert KeyHashes.parse(keys.texts()) == keys


@given(text=st.text(max_size=30) | st.text("producer:node-_.0123456789abcdefTZ+", max_size=70))
def test_any_text_gives_a_value_or_our_error(text: str) -> None:
    """All of these come from outside."""
    for read in (NotificationId.parse, KeyHash.parse, parse_time, Place.parse, Area.parse):
        with suppress(InvalidInputError):
            assert read(text) is not None


@given(
    battery=st.sampled_from(["0.5", "1", "-1", "[]", "1e999", "null", '"x"', "99999999999999999999"]),
    display=st.sampled_from(["null", "{}", '{"width":1,"height":2}', '{"width":1.5,"height":2}', "3"]),
    place=st.sampled_from(["null", '"1,2"', '"91,2"', "7", '"' + "1" * 400 + '"']),
)
def test_any_report_gives_a_state_or_our_error(battery: str, display: str, place: str) -> None:
    """A device in the field cannot be trusted to report well."""
    report = f'{{"battery":{battery},"display":{display},"place":{place},"received":{battery}}}'
    with suppress(InvalidInputError):
        state = DeviceState.from_report(report, device="d", now=0)
        assert state.battery is None or 0 <= state.battery <= 1
