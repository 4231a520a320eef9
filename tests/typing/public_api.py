"""The public API as a user's type checker sees it; mypy reads this file, nothing runs it."""

from __future__ import annotations

from typing import assert_type

from whimbrel import Filter, FilterError, InvalidInputError, WhimbrelError
from whimbrel.language import ErrorCode, normal_form, parse, print_filter
from whimbrel.language.ast import Predicate
from whimbrel.match.matcher import Interest, Matcher
from whimbrel.model import Attributes, Notification, NotificationId, checked
from whimbrel.rendezvous.controller import Command, Controller, Timer
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.device.commands import DeviceCommand
from whimbrel.rendezvous.events import read_address
from whimbrel.testing import ManualClock

assert_type(Filter("a == 1").matches({"a": 1}), bool)
assert_type(Filter("a == 1").verdict({"a": 1}), bool | None)
assert_type(parse("a == 1"), Predicate)
assert_type(print_filter(normal_form(parse("a == 1"))), str)
assert_type(checked({"a": 1}), Attributes)

notification = Notification(node="n", seq=1, published_at=0, subject="a/b")
assert_type(notification.id, NotificationId)

matcher = Matcher()
assert_type(matcher.add("me", Interest(filter_text="a == 1", subject_filter="a/#")), int)
assert_type(matcher.match(notification), list[int])
assert_type(matcher.id_of(0), str)
assert_type(ManualClock().now(), int)

controller = Controller(address=read_address("00:1A:7D:DA:71:0B"), nonce_key=bytes(32))
assert_type(controller.receive(Timer(), now=0), list[Command])
assert_type(Device(address=controller.address, name="phone").publish(), list[DeviceCommand])


def place(error: FilterError) -> tuple[int, int]:
    """Return where an error is; it is one of ours."""
    root: WhimbrelError = error
    reaction: InvalidInputError = error
    assert root is reaction
    assert ErrorCode(error.code).summary
    return error.line, error.column
