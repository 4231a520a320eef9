"""Messages on an L2CAP channel: cut into pieces and put together, whatever the pieces are."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.rendezvous.radio.bumble.framing import Deframer, TooLongError, frame
from whimbrel.rendezvous.wire import MAX_MESSAGE_BYTES


@given(st.lists(st.binary(max_size=3_000), max_size=6), st.integers(1, 700), st.integers(1, 900))
def test_messages_arrive_whole_and_in_order(messages: list[bytes], piece_bytes: int, cut: int) -> None:
    """However the sender cuts, and however what arrives is cut again."""
    stream = b"".join(piece for each in messages for piece in frame(each, piece_bytes=piece_bytes))
    deframer, got = Deframer(), list[bytes]()
    for start in range(0, len(stream), cut):
        got += deframer.feed(stream[start : start + cut])
    assert got == messages


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    """Nothing but the refusal comes of them, and no more is kept than was sent."""
    deframer = Deframer()
    with suppress(TooLongError):
        deframer.feed(data)
    assert len(deframer._waiting) <= len(data)


def test_a_length_above_any_message_is_refused_before_its_bytes() -> None:
    """Else a stranger could have us keep what it likes."""
    with pytest.raises(TooLongError, match="allowed are 131072"):
        Deframer().feed((MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))
