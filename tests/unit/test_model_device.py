"""Device state: what a report says, and the automatic variables."""

from __future__ import annotations

import pytest

from whimbrel.errors import InvalidInputError
from whimbrel.model.device import DeviceState, Display
from whimbrel.model.place import Place


def test_a_full_report_is_read() -> None:
    """Time and ``sent`` are the server's, not the device's."""
    report = (
        b'{"battery": 0.4, "display": {"width": 240, "height": 320}, "received": 9,'
        b' "sent": 1, "place": "52.52,13.405", "colour": "green"}'
    )
    assert DeviceState.from_report(report, device="pda-1", now=5, sent=10) == DeviceState(
        device="pda-1",
        reported_at=5,
        battery=0.4,
        display=Display(240, 320),
        received=9,
        sent=10,
        place=Place(52.52, 13.405),
        members={"colour": "green"},
    )


def test_what_a_report_does_not_say_is_unknown() -> None:
    """A report may carry a position only; null is no value either."""
    state = DeviceState.from_report('{"battery": null}', device="d", now=0)
    assert state == DeviceState(device="d", reported_at=0)


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ('{"battery": 1.5}', "battery: found 1.5, allowed is a number from 0 to 1"),
        ('{"battery": true}', "battery: found True"),
        ('{"battery": "full"}', "battery: found 'full'"),
        ('{"display": [240, 320]}', 'display: found .* "width" and "height"'),
        ('{"display": {"width": 240}}', "display: found"),
        ('{"display": {"width": -1, "height": 1}}', "width of display: found -1"),
        ('{"received": 1.0}', "received: found 1.0"),
        ('{"received": 99999999999999999999}', "received: found"),
        ('{"place": {"lat": 1}}', 'a string "lat,lon"'),
        ('{"place": "1;2"}', "place: found '1;2'"),
        ('{"battery": }', "JSON body, line 1, column 13"),
        ("[]", "an array on top"),
    ],
)
def test_a_bad_report_is_refused_with_the_field(report: str, message: str) -> None:
    """The device's maker reads this message."""
    with pytest.raises(InvalidInputError, match=message):
        DeviceState.from_report(report, device="d", now=0)


@pytest.mark.parametrize(
    ("received", "sent", "ratio"), [(9, 10, 0.9), (11, 10, 1.0), (0, 0, None), (None, 1, None), (1, None, None)]
)
def test_network_connection_is_received_over_sent(received: int | None, sent: int | None, ratio: float | None) -> None:
    """SUBLIM, section 6.2; late arrivals of the last interval never make it more than one."""
    assert DeviceState(device="d", reported_at=0, received=received, sent=sent).network_connection == ratio


def test_whatever_else_a_device_says_is_kept_flat_and_lists_are_sets() -> None:
    """Policies ask for it by name; an empty set is not the same as one that was not said."""
    report = '{"mine": ["p1", 7, "p1", null, [1]], "none": [], "net": {"kind": "4g", "up": true}, "x": null}'
    assert DeviceState.from_report(report, device="d", now=0).members == {
        "mine": 2,
        "mine.p1": 1,
        "mine.7": 1,
        "none": 0,
        "net.kind": "4g",
        "net.up": 1,
    }


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ('{"a": {"b": 1}, "a.b": 2}', "member of a report: found 'a.b', allowed is each name once"),
        ('{"": 1}', "member of a report: found ''"),
        (f'{{"a": {[*range(300)]}}}', "attributes: found 301, allowed is at most 256 names"),
        (f'{{"a": "{"x" * 9_000}"}}', "at most 8192 bytes in all"),
    ],
)
def test_what_a_device_says_beside_is_bounded(report: str, message: str) -> None:
    """It is kept for as long as the device lives."""
    with pytest.raises(InvalidInputError, match=message):
        DeviceState.from_report(report, device="d", now=0)
