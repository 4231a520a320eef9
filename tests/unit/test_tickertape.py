"""The tickertape without a terminal and without a broker: texts, messages, the tape, the keys."""

from __future__ import annotations

import json
import math
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.cli.main import main
from whimbrel.cli.ticker.board import Board, Command, Mode, Quit, Send
from whimbrel.cli.ticker.keys import KeyReader
from whimbrel.cli.ticker.message import MAX_MINUTES, TickerMessage, check_group, read_line, read_message, topic_of
from whimbrel.cli.ticker.tape import Shade, Span, Tape
from whimbrel.cli.ticker.text import clean, columns, fit, fitted_end, width_of
from whimbrel.errors import InvalidValueError

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)  # surrogates and controls included
WIDTHS = st.integers(1, 60)


def said(text: str, *, user: str = "ann", identity: str = "", minutes: int = 5) -> TickerMessage:
    """Return what somebody said in the group ``chat``."""
    return TickerMessage(group="chat", user=user, text=text, message_id=identity, timeout_minutes=minutes)


def seen(spans: list[Span]) -> str:
    """Return the text of a line."""
    return "".join(span.text for span in spans)


def is_harmless(text: str) -> bool:
    """Tell whether a terminal only shows *text*; written otherwise than ``clean`` is, so that both can be wrong."""
    return not any(unicodedata.category(character).startswith("C") or ord(character) < 32 for character in text) and (
        text.isprintable()
    )


# -- text ------------------------------------------------------------------------------------------------------------


@given(ANY_TEXT)
def test_clean_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    """Whoever can write to a group must not be able to write to our terminal."""
    shown = clean(text)
    assert is_harmless(shown)
    assert clean(shown) == shown


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b]0;owned\x07hi", "]0;ownedhi"),
        ("\x1b[2J\x1b[Hhi", "[2J[Hhi"),
        ("\x9b31mred", "31mred"),
        ("one\r\ntwo\tthree", "one two three"),
        ("safe\N{RIGHT-TO-LEFT OVERRIDE}txt.exe", "safetxt.exe"),
        ("a\N{ZERO WIDTH JOINER}b\N{ZERO WIDTH NO-BREAK SPACE}", "ab"),
        ("\N{LINE SEPARATOR}a\N{NO-BREAK SPACE}b ", "a b"),
        ("\ud800x\ue000", "\ufffdx\ufffd"),
        ("plain Zürich 東京", "plain Zürich 東京"),
    ],
)
def test_hostile_text_is_only_text(hostile: str, shown: str) -> None:
    """The tricks that are known: titles, clearing, C1 controls, lines, turned writing, halves of pairs."""
    assert clean(hostile) == shown


def test_a_wide_character_fills_two_columns_and_a_mark_none() -> None:
    """A line that is counted in characters does not end where the terminal's does."""
    assert columns("a東e\N{COMBINING ACUTE ACCENT}") == ("a", "東", "", "e\N{COMBINING ACUTE ACCENT}")
    assert width_of("東京") == 4
    assert width_of("\N{HANGUL CHOSEONG KIYEOK}\N{HANGUL JUNGSEONG A}") == 2


def test_marks_are_no_tower_and_never_alone() -> None:
    """Forty accents on one letter would reach into the lines of others."""
    accent = "\N{COMBINING ACUTE ACCENT}"
    assert columns(accent + "e" + accent * 40) == ("e" + accent * 4,)


@given(ANY_TEXT, WIDTHS)
def test_a_fitted_text_is_exactly_as_wide_as_asked(text: str, width: int) -> None:
    """Neither end of a wide character may stick out."""
    for fitting in (fit, fitted_end):
        shown = fitting(clean(text), width)
        assert width_of(shown) == width
        assert is_harmless(shown)


def test_what_does_not_fit_says_so() -> None:
    """The beginning of what was said, and the end of what is being typed."""
    assert fit("hello world", 6) == "hello…"
    assert fitted_end("hello world", 6) == "…world"
    assert fit("東京東京", 4) == "東 …"
    assert fit("ab", 4) == fitted_end("ab", 4) == "ab  "
    assert fit("ab", 0) == fitted_end("ab", 0) == ""


# -- messages --------------------------------------------------------------------------------------------------------


def test_a_message_is_read_as_it_was_written() -> None:
    """The names are those of Tickertape, so that filters can be written from its manual."""
    message = TickerMessage(group="chat", user="ann", text="tea?", timeout_minutes=3, message_id="m1")
    body = json.dumps(message.attributes()).encode()
    assert json.loads(body).keys() == {"TICKERTAPE", "USER", "TICKERTEXT", "TIMEOUT", "Message-Id"}
    assert read_message("tickertape/chat", body) == message
    assert str(message) == "chat: ann: tea?"
    assert topic_of("chat") == "tickertape/chat"


def test_the_group_is_where_it_was_sent_and_not_what_it_claims() -> None:
    """The broker's rights guard topics; a body can say anything."""
    assert read_message("tickertape/chat", b'{"TICKERTAPE": "board", "TICKERTEXT": "hi"}').group == "chat"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"hello", "hello"),
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b'{"other": 1}', '{"other": 1}'),
        (b'{"TICKERTEXT": 5}', '{"TICKERTEXT": 5}'),
        (b'{"USER": "\\u001b[2J", "TICKERTEXT": "a\\u0000b"}', "ab"),
    ],
)
def test_any_body_is_a_message(body: bytes, text: str) -> None:
    """Every MQTT client can write to a group, with or without our names."""
    assert read_message("tickertape/chat", body).text == text


@given(st.binary(max_size=80), ANY_TEXT)
def test_nothing_that_arrives_is_harmful_or_raises(body: bytes, topic: str) -> None:
    """The wire is written by strangers."""
    message = read_message(topic, body)
    assert is_harmless(str(message))
    assert 0 < message.remaining_s() <= MAX_MINUTES * 60


@pytest.mark.parametrize(
    ("said_minutes", "minutes"), [(1, 1), (2.5, 3), (0, 5), (-1, 5), (10**9, MAX_MINUTES), ("9", 5), (True, 5)]
)
def test_a_life_is_some_minutes(said_minutes: object, minutes: int) -> None:
    """Whatever is no time gets the usual one; nobody writes for ever."""
    body = json.dumps({"TICKERTEXT": "x", "TIMEOUT": said_minutes}).encode()
    assert read_message("tickertape/chat", body).timeout_minutes == minutes


def test_what_was_held_has_only_the_rest_of_its_life() -> None:
    """The broker counts the time that a message waited; the tape does not begin anew."""
    body = b'{"TICKERTEXT": "x", "TIMEOUT": 2}'
    assert read_message("tickertape/chat", body, life_s=30).remaining_s() == 30
    assert read_message("tickertape/chat", body, life_s=math.inf).remaining_s() == 120
    assert read_message("tickertape/chat", body).remaining_s() == 120


@pytest.mark.parametrize("group", ["", "a/b", "+", "#", "a:b", "a\nb", " a", "x" * 65, "\x1b[1m"])
def test_a_group_is_one_level_of_a_topic(group: str) -> None:
    """A wildcard would be another subscription than the one that was asked for."""
    with pytest.raises(InvalidValueError, match="group"):
        check_group(group)


def test_a_typed_line_has_group_and_text() -> None:
    """The same form in which messages are printed."""
    assert read_line("chat: tea: now?\n") == ("chat", "tea: now?")
    for line in ("hello", "chat:", ": hello", "a/b: hello"):
        with pytest.raises(InvalidValueError, match="found"):
            read_line(line)


# -- the tape --------------------------------------------------------------------------------------------------------


def test_a_message_comes_in_at_the_right_and_leaves_at_the_left() -> None:
    """The one thing a ticker does; a column a second here."""
    tape = Tape(10, columns_per_s=1)
    tape.add(said("ho"), now=0)
    assert seen(tape.window(now=0)) == " " * 10
    assert seen(tape.window(now=3)) == "       cha"
    assert seen(tape.window(now=10)) == "chat: ann:"
    assert seen(tape.window(now=16)) == "ann: ho   "
    around = width_of("chat: ann: ho   ·   ")
    assert seen(tape.window(now=10 + around)) == " " * 10
    assert seen(tape.window(now=10 + around + 3)) == "       cha"


def test_a_message_lives_until_its_time_is_over() -> None:
    """Alive if and only if now is before its end, as everywhere in Whimbrel."""
    tape = Tape(40, columns_per_s=0)
    tape.add(said("short", minutes=1), now=0)
    tape.add(said("long", minutes=2), now=0)
    tape.advance(now=59.9)
    assert [message.text for message in tape.messages] == ["short", "long"]
    tape.advance(now=60)
    assert [message.text for message in tape.messages] == ["long"]
    tape.advance(now=120)
    assert tape.messages == ()
    assert seen(tape.window(now=120)) == " " * 40


def test_messages_fade_before_they_go() -> None:
    """A glance tells what is new."""
    tape = Tape(100, columns_per_s=100 + width_of("chat: ann: tea   ·   "))  # once round in a second
    tape.add(said("tea", minutes=1), now=0)
    shades = {now: [span.shade for span in tape.window(now=now) if "tea" in span.text] for now in (0.5, 29.5, 54.5)}
    assert shades == {0.5: [Shade.FRESH], 29.5: [Shade.PLAIN], 54.5: [Shade.FADING]}


def test_a_message_that_is_delivered_again_is_there_once() -> None:
    """After a lost connection the broker may send what it was not told of."""
    tape = Tape(20)
    for _ in range(2):
        tape.add(said("tea?", identity="m1"), now=0)
        tape.add(said("no id"), now=0)
    assert [message.text for message in tape.messages] == ["tea?", "no id", "no id"]


def test_the_oldest_leaves_when_the_tape_is_full() -> None:
    """A flood in a group must not fill our memory."""
    tape = Tape(20, most_messages=3)
    for number in range(5):
        tape.add(said(str(number)), now=number)
    assert sorted(message.text for message in tape.messages) == ["2", "3", "4"]


def test_what_is_over_does_not_come_on_the_tape() -> None:
    """A message may have lived its time on the way."""
    tape = Tape(20)
    tape.add(TickerMessage(group="chat", user="ann", text="late", life_s=0.0), now=0)
    assert tape.messages == ()


def test_a_new_message_is_the_next_to_be_read() -> None:
    """It goes in beyond the right edge, and what is in sight stays where it is."""
    tape = Tape(20, columns_per_s=1)
    for text in ("one", "two", "three", "four", "five", "six"):
        tape.add(said(text), now=0)
    assert [message.text for message in tape.messages] == ["one", "two", "three", "four", "five", "six"]
    passed = [seen(tape.window(now=float(now))) for now in range(60)]
    assert "one" in passed[25]
    for text in ("news", "more"):
        tape.add(said(text), now=59)
    assert seen(tape.window(now=59)) == passed[59]
    order = [message.text for message in tape.messages]
    assert order.index("news") + 1 == order.index("more")
    assert order.index("six") < order.index("news") < order.index("one")


def test_a_tape_that_nobody_looked_at_for_long_goes_on() -> None:
    """A laptop that slept does not make up for the turns it missed."""
    tape = Tape(20, columns_per_s=1e9)
    for text in ("one", "two", "three"):
        tape.add(said(text, minutes=MAX_MINUTES), now=0)
    assert width_of(seen(tape.window(now=80_000))) == 20
    assert len(tape.messages) == 3


def test_a_window_may_change_its_width() -> None:
    """Terminals are resized."""
    tape = Tape(10)
    tape.add(said("hello world"), now=0)
    for width in (80, 1, 25):
        tape.resize(width)
        assert width_of(seen(tape.window(now=3))) == width
    with pytest.raises(InvalidValueError):
        Tape(10, columns_per_s=-1)


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "pass", "resize"]), ANY_TEXT, st.floats(0, 200), WIDTHS), max_size=25
)


@given(STEPS, st.integers(1, 6))
def test_a_window_is_always_exactly_as_wide_as_it_is(steps: list[tuple[str, str, float, int]], most: int) -> None:
    """Whatever is said, whenever, and whoever resizes: never a column more or less, and nothing to obey."""
    tape, now, width = Tape(20, most_messages=most), 0.0, 20
    for step, text, seconds, wanted in steps:
        match step:
            case "add":
                tape.add(read_message("tickertape/chat", text.encode(errors="surrogatepass")), now=now)
            case "pass":
                now += seconds
            case _:
                width = wanted
                tape.resize(width)
        shown = seen(tape.window(now=now))
        assert width_of(shown) == width
        assert is_harmless(shown)
        assert len(tape.messages) <= most


@given(st.lists(st.sampled_from(["a", "東京", "e\u0301", "hello world"]), min_size=1, max_size=6), st.integers(30, 60))
def test_every_message_is_seen_in_each_turn(texts: list[str], width: int) -> None:
    """Nobody is left out, and nobody is seen twice before all others were seen."""
    tape = Tape(width, columns_per_s=1)
    for number, text in enumerate(texts):
        tape.add(said(text, user=str(number), minutes=MAX_MINUTES), now=0)
    turn = width + 2 * sum(width_of(f"{message}   ·   ") for message in tape.messages)
    windows = [seen(tape.window(now=float(now))) for now in range(turn)]
    for message in tape.messages:
        assert any(str(message) in window for window in windows)
        assert not any(window.count(f"chat: {message.user}:") > 1 for window in windows)


# -- keys and the board ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"ab", ["a", "b"]),
        (b"\r", ["enter"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        (b"\x1b[3~\x1b[1;5Cx", ["x"]),
        ("é東".encode(), ["é", "東"]),
        (b"\x7f\x15\x04\t", ["backspace", "erase", "end", "tab"]),
        (b"\x00\x01 ", [" "]),
    ],
)
def test_keys_are_characters_and_names(data: bytes, keys: list[str]) -> None:
    """A sequence that nobody knows is no text."""
    assert KeyReader().feed(data) == keys


def test_a_character_may_come_in_parts() -> None:
    """A read ends where it ends."""
    reader = KeyReader()
    assert [key for byte in "東".encode() for key in reader.feed(bytes([byte]))] == ["東"]


def typed(board: Board, *keys: str) -> list[Command]:
    """Press *keys*; return what the board wants done."""
    return [command for key in keys if (command := board.press(key)) is not None]


def cursor_of(board: Board) -> int | None:
    """Return where one types; asked like this, a type checker does not think that it stays there."""
    return board.cursor


def test_a_line_is_typed_and_sent() -> None:
    """Enter opens the entry line and Enter sends it; Tab chooses the group."""
    board = Board(Tape(30), ["chat", "staff"])
    assert typed(board, "enter", *"tea?") == []
    assert seen(board.line(now=0)) == "to chat> tea?".ljust(30)
    assert cursor_of(board) == len("to chat> tea?")
    assert typed(board, "tab", "backspace", "!") == []
    assert seen(board.line(now=0)) == "to staff> tea!".ljust(30)
    assert typed(board, "enter") == [Send("staff", "tea!")]
    assert cursor_of(board) is None
    assert typed(board, "i", "enter") == []  # nothing typed, nothing sent
    assert typed(board, "tab", *"x", "escape", "enter", "enter") == []  # given up
    assert typed(board, "q") == [Quit()]


def test_q_is_a_letter_where_one_types() -> None:
    """A quick question must not end the program."""
    board = Board(Tape(30), ["chat"])
    assert typed(board, "i", "q", "h", "enter") == [Send("chat", "qh")]
    assert typed(board, "i", "interrupt") == [Quit()]


def test_the_past_is_looked_at_one_message_at_a_time() -> None:
    """The line stays one line."""
    board = Board(Tape(40), ["chat"], remembered=3)
    assert typed(board, "h") == []
    assert seen(board.line(now=0)).strip() == "[0/0] nothing was said yet"
    typed(board, "h")
    for number in range(4):
        board.arrived(said(f"message {number}"), now=0)
    typed(board, "h")
    assert seen(board.line(now=0)).strip() == "[3/3] chat: ann: message 3"
    typed(board, *["up"] * 9)
    assert seen(board.line(now=0)).strip() == "[1/3] chat: ann: message 1"
    typed(board, "j")
    assert seen(board.line(now=9_999)).strip() == "[2/3] chat: ann: message 2"
    typed(board, "escape")
    assert board.mode is Mode.TAPE


def test_whoever_reads_the_past_goes_on_reading_the_same() -> None:
    """What arrives meanwhile does not push it away."""
    board = Board(Tape(40), ["chat"])
    board.arrived(said("first"), now=0)
    typed(board, "h")
    board.arrived(said("second"), now=0)
    assert seen(board.line(now=0)).strip() == "[1/2] chat: ann: first"


def test_a_message_that_comes_again_is_remembered_once() -> None:
    """Nor is it shown again when it has left the tape."""
    board = Board(Tape(40), ["chat"])
    for now in (0, 9_999):
        board.arrived(said("tea?", identity="m1"), now=now)
    assert seen(board.line(now=9_999)) == " " * 40
    assert board.is_still
    typed(board, "h")
    assert seen(board.line(now=0)).startswith("[1/1] ")


def test_a_note_of_our_own_is_shown_for_a_moment() -> None:
    """A broker that cannot be reached for an hour must not fill the tape, nor may its words reach the terminal."""
    board = Board(Tape(30), ["chat"])
    for sentence in ("connection lost", "still \x1b[2Jlost"):
        board.note(sentence, now=10)
        assert not board.is_still
    assert seen(board.line(now=11)) == "still [2Jlost".ljust(30)
    assert seen(board.line(now=20)) == " " * 30
    assert board.is_still


KEYS = st.lists(
    st.one_of(st.sampled_from("i h q enter escape tab up down backspace erase end".split()), st.characters())
)


@given(KEYS, WIDTHS, st.lists(ANY_TEXT, max_size=4))
def test_a_line_is_always_exactly_as_wide_as_the_window(keys: list[str], width: int, texts: list[str]) -> None:
    """Whatever is typed or arrives, in whatever order."""
    board = Board(Tape(width), ["chat", "東京"], remembered=2)
    for now, key in enumerate(keys):
        for text in texts[now : now + 1]:
            board.arrived(read_message("tickertape/chat", text.encode(errors="surrogatepass")), now=now)
        for read in KeyReader().feed(key.encode(errors="surrogatepass")) if len(key) == 1 else [key]:
            board.press(read)
        shown = seen(board.line(now=now))
        assert width_of(shown) == width
        assert is_harmless(shown)
        assert board.cursor is None or 0 <= board.cursor < width


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("a/b",), "without / + #"),
        (("chat", "--leave", "#"), "without / + #"),
        (("chat", "--filter", "USER = 'bot'"), "= is not an operator"),
        (("--filter", "USER != 'bot'"), "needs a GROUP"),
        (("--send", "chat", " "), "found no text"),
        (("--send", "chat", "x", "--once"), "excludes"),
        (("--mqtt", "4"), "allowed is 5 or 3.1.1"),
        (("--password-file", "x"), "needs --user"),
        (("--minutes", "0"), "--minutes"),
    ],
)
def test_a_mistake_is_named_before_anything_is_sent(
    arguments: tuple[str, ...], found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody needs a broker to see a slip."""
    monkeypatch.setattr(sys, "argv", ["whimbrel", "tickertape", *arguments, "--port", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert found in " ".join(capsys.readouterr().err.split())
