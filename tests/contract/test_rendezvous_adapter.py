"""What becomes of an adapter that refuses, is silent or goes away, and of devices that are not paired.

Bumble's stack talks HCI over TCP on loopback to a radio of the air in software, on which pages end ten times sooner.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from bumble import hci
from bumble.l2cap import ClassicChannelSpec
from tests.unit.rendezvous_rig import ALICE, BOB, CAROL, address

from whimbrel.errors import InvalidValueError, WhimbrelError
from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.radio.bumble.adapter import Adapter, Limits
from whimbrel.rendezvous.radio.bumble.air.server import AirServer, RadioSpec
from whimbrel.rendezvous.radio.bumble.errors import (
    CommandRefusedError,
    CommandSilentError,
    NoSuchTransportError,
    TooManySlavesError,
)
from whimbrel.rendezvous.radio.bumble.framing import frame
from whimbrel.rendezvous.radio.bumble.pairing import KeyFile, Unpaired, UnpairedError
from whimbrel.rendezvous.radio.bumble.radio import PSM, BumbleRadio
from whimbrel.rendezvous.radio.interface import InquiryResult, LinkLost, LinkMade, PageFailed, RadioEvent, Received

SPEED = 10
QUICK = Limits(
    open_s=2,
    command_s=0.3,
    page_s=0.3,
    name_s=0.5,
    channel_s=0.5,
    offset_s=0.2,
    retry_s=0.05,
    close_s=0.5,
    pairing_s=0.5,
)
LONG_US = 5_120_000


class Bench:
    """Radios on one air, and what has happened to each."""

    def __init__(self) -> None:
        self.server = AirServer(speed=SPEED, supervision_s=0.1)
        self.events: dict[Address, list[RadioEvent]] = {}
        self.troubles: list[WhimbrelError] = []
        self._radios: list[BumbleRadio] = []

    async def adapter(self, who: Address, **spec: frozenset[str]) -> Adapter:
        """Open a radio of the air."""
        transport = await self.server.offer(RadioSpec(address=who, **spec))  # type: ignore[arg-type]  # refuses, ignores
        return await Adapter.open(transport, device_name=who, device_class=0, limits=QUICK)

    async def radio(
        self,
        who: Address,
        *,
        unpaired: Unpaired = Unpaired.ACCEPT,
        keys: Path | None = None,
        **spec: frozenset[str],
    ) -> BumbleRadio:
        """Make a radio of it that listens for pages."""
        store = None if keys is None else KeyFile(who, keys)
        adapter = await self.adapter(who, **spec)
        radio = BumbleRadio(adapter, now=lambda: 0, trouble=self.troubles.append, unpaired=unpaired, keys=store)
        events = self.events[who] = []
        radio.handler = lambda event, _now: events.append(event)
        radio.set_scans(inquiry=True, page=True)
        self._radios.append(radio)
        return radio

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so; a limit of ten seconds is a failure, not a measurement."""
        async with asyncio.timeout(10):
            while not is_so():  # noqa: ASYNC110 # what is awaited is in another object's hands
                await asyncio.sleep(0.01)

    async def met(self, pager: BumbleRadio, paged: Address) -> RadioEvent:
        """Let one page the other, and return how that ended for the pager."""
        mine = self.events[pager.address]
        before = len(mine)
        pager.page(paged, None, timeout_us=LONG_US)
        await self.until(lambda: len(mine) > before)
        return mine[before]

    async def close(self) -> None:
        """End it."""
        for radio in self._radios:
            await radio.close()
        await self.server.close()


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    """Give a bench."""
    made = Bench()
    try:
        yield made
    finally:
        await made.close()


def run(test: Callable[[Bench], Coroutine[object, object, None]]) -> None:
    """Run *test* with a bench."""

    async def play() -> None:
        async with bench() as made:
            await test(made)

    asyncio.run(play())


# -- adapters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transport", "why"),
    [
        ("nonsense:1", "unknown transport scheme"),
        ("tcp-client:127.0.0.1:1", "Connect call failed"),
        ("usb:", "usb:0"),
        ("", "allowed are usb:0"),
    ],
)
def test_an_adapter_that_is_not_there_is_named_with_what_is_allowed(transport: str, why: str) -> None:
    """A wrong number, a missing driver, a typing error."""

    async def test(made: Bench) -> None:
        del made
        with pytest.raises(NoSuchTransportError, match=why):
            await Adapter.open(transport, device_name="x", device_class=0, limits=QUICK)

    run(test)


def test_an_adapter_without_inquiry_is_refused_when_it_is_opened() -> None:
    """A dongle that is LE only says so at once; better now than when the first device is looked for."""

    async def test(made: Bench) -> None:
        with pytest.raises(CommandRefusedError, match="the adapter refuses HCI_INQUIRY_COMMAND"):
            await made.adapter(ALICE, refuses=frozenset({"HCI_INQUIRY_COMMAND"}))

    run(test)


@pytest.mark.parametrize("command", ["HCI_RESET_COMMAND", "HCI_INQUIRY_COMMAND"])
def test_an_adapter_that_never_answers_is_given_up(command: str) -> None:
    """A stuck driver must not hang the program, and the message names the command."""

    async def test(made: Bench) -> None:
        with pytest.raises(CommandSilentError, match=f"the adapter did not answer {command} within 0.3 s"):
            await made.adapter(ALICE, ignores=frozenset({command}))

    run(test)


@pytest.mark.parametrize(("how", "error"), [("refuses", CommandRefusedError), ("ignores", CommandSilentError)])
def test_a_page_that_the_adapter_does_not_make_has_failed(how: str, error: type[WhimbrelError]) -> None:
    """Refused at once or never answered: the page failed, the reason is told, and the radio goes on."""

    async def test(made: Bench) -> None:
        command = frozenset({"HCI_CREATE_CONNECTION_COMMAND"})
        spec = {how: command}
        alice, _ = await made.radio(ALICE, **spec), await made.radio(BOB)  # type: ignore[arg-type]  # refuses, ignores
        assert await made.met(alice, BOB) == PageFailed(BOB)
        assert [type(each) for each in made.troubles] == [error]
        assert await made.met(alice, CAROL) == PageFailed(CAROL)

    run(test)


def test_an_adapter_that_is_busy_for_a_moment_is_asked_again() -> None:
    """Refused while it does something else: the inquiry without end goes on, and no page has failed."""

    async def test(made: Bench) -> None:
        alice, _ = await made.radio(ALICE), await made.radio(BOB)
        controller = made.server.radios[ALICE]
        controller.refuses = frozenset({"HCI_INQUIRY_COMMAND", "HCI_CREATE_CONNECTION_COMMAND"})
        alice.inquire(is_on=True)
        await made.until(lambda: bool(made.troubles))
        alice.page(BOB, None, timeout_us=LONG_US)
        await asyncio.sleep(0.02)
        controller.refuses = frozenset()
        events = made.events[ALICE]
        await made.until(lambda: {type(each) for each in events} == {LinkMade, InquiryResult})

    run(test)


def test_an_eighth_slave_is_refused_with_what_is_allowed() -> None:
    """The radio says so itself: not every adapter does, and one that is asked aborts (RootCanal)."""

    async def test(made: Bench) -> None:
        alice = await made.radio(ALICE)
        crowd = [address(300 + number) for number in range(8)]
        for who in crowd:
            await made.radio(who)
        met = [await made.met(alice, who) for who in crowd]
        assert [type(each) for each in met] == [LinkMade] * 7 + [PageFailed]
        (trouble,) = made.troubles
        assert isinstance(trouble, TooManySlavesError)
        assert str(trouble).endswith("this radio is master of 7 devices already, and allowed are 7")

    run(test)


def test_a_late_answer_is_not_taken_for_another_commands() -> None:
    """The adapter answers a command that was given up, while the next one waits."""

    async def test(made: Bench) -> None:
        host = (await made.adapter(ALICE)).host
        host.hci_sink = type("Silent", (), {"on_packet": staticmethod(lambda _packet: None)})()
        waiting = asyncio.ensure_future(host.send_sync_command(hci.HCI_Inquiry_Cancel_Command()))
        await asyncio.sleep(0)

        def answer(command: type[hci.HCI_Command], status: int) -> None:
            parameters = hci.HCI_StatusReturnParameters(hci.HCI_ErrorCode(status))
            done: hci.HCI_Command_Complete_Event[hci.HCI_StatusReturnParameters] = hci.HCI_Command_Complete_Event(
                num_hci_command_packets=1, command_opcode=command.op_code, return_parameters=parameters
            )
            host.on_hci_command_complete_event(done)

        answer(hci.HCI_Write_Scan_Enable_Command, 1)
        answer(hci.HCI_Inquiry_Cancel_Command, 0)
        assert (await waiting).status == 0

    run(test)


def test_a_clock_offset_that_never_comes_costs_time_once() -> None:
    """The connection is told without it, and the adapter is not asked again."""

    async def test(made: Bench) -> None:
        silent = frozenset({"HCI_READ_CLOCK_OFFSET_COMMAND"})
        alice = await made.radio(ALICE, ignores=silent)
        for who in (BOB, CAROL):
            await made.radio(who)
            assert isinstance(await made.met(alice, who), LinkMade)
        assert [type(each) for each in made.troubles] == [CommandSilentError]

    run(test)


def test_a_device_that_is_killed_is_lost_to_the_others() -> None:
    """Its process ends without a word; the connection ends with the supervision time-out."""

    async def test(made: Bench) -> None:
        alice, bob = await made.radio(ALICE), await made.radio(BOB)
        await made.met(alice, BOB)
        await bob._adapter._transport.close()
        await made.until(lambda: LinkLost(BOB) in made.events[ALICE])

    run(test)


# -- strangers ---------------------------------------------------------------------------------------------------------


def test_any_bytes_on_the_channel_end_the_connection_at_most() -> None:
    """A length of four gigabytes, from a stranger that connects as any Bluetooth device can."""

    async def test(made: Bench) -> None:
        bob, stranger = await made.radio(BOB), await made.adapter(ALICE)
        connection = await stranger.device.connect_classic(bob._adapter.device.public_address)
        channel = await connection.create_l2cap_channel(ClassicChannelSpec(psm=PSM))
        channel.write(b"\xff" * 40)
        await made.until(lambda: bool(made.troubles))
        assert "a frame of 4294967295 bytes" in str(made.troubles[0])
        await made.until(lambda: not bob._links)
        carol = await made.radio(CAROL)
        assert isinstance(await made.met(carol, BOB), LinkMade)
        await stranger.close()

    run(test)


def test_a_device_without_our_layer_is_told_as_such() -> None:
    """A headset answers pages; our channel is refused."""

    async def test(made: Bench) -> None:
        alice, headset = await made.radio(ALICE), await made.adapter(BOB)
        await headset.device.set_connectable(True)  # Bumble's own
        met = await made.met(alice, BOB)
        assert met == LinkMade(BOB, is_caller=True, name=BOB, has_layer=False)
        await headset.close()

    run(test)


# -- pairing -----------------------------------------------------------------------------------------------------------


def test_unpaired_devices_are_refused_where_that_is_set(tmp_path: Path) -> None:
    """Whoever pages whom."""

    async def test(made: Bench) -> None:
        careful = await made.radio(BOB, unpaired=Unpaired.REFUSE, keys=tmp_path / "bob")
        alice = await made.radio(ALICE)
        await made.met(alice, BOB)
        await made.until(lambda: LinkLost(BOB) in made.events[ALICE] or PageFailed(BOB) in made.events[ALICE])
        assert made.events[BOB] == []
        assert await made.met(careful, ALICE) == PageFailed(ALICE)
        assert {type(each) for each in made.troubles} == {UnpairedError}

    run(test)


def test_paired_devices_connect_encrypted_and_a_wrong_key_does_not(tmp_path: Path) -> None:
    """Pair once; from then on only this device, with this key."""
    files = {who: tmp_path / who.replace(":", "") for who in (ALICE, BOB)}

    async def pair(made: Bench) -> None:
        alice, bob = [await made.radio(who, unpaired=Unpaired.PAIR, keys=files[who]) for who in (ALICE, BOB)]
        assert isinstance(await made.met(alice, BOB), LinkMade)
        await made.until(lambda: all(path.exists() for path in files.values()))
        assert bob._links[ALICE].connection.is_encrypted

    async def meet(made: Bench) -> None:
        alice, _ = [await made.radio(who, unpaired=Unpaired.REFUSE, keys=files[who]) for who in (ALICE, BOB)]
        assert isinstance(await made.met(alice, BOB), LinkMade)
        alice.send(BOB, b"hello")
        await made.until(lambda: made.events[BOB][1:] == [Received(ALICE, b"hello")])

    async def hurry(made: Bench) -> None:
        bob = await made.radio(BOB, unpaired=Unpaired.REFUSE, keys=files[BOB])
        alice = await made.adapter(ALICE)
        alice.device.keystore = KeyFile(ALICE, files[ALICE])
        connection = await alice.device.connect_classic(bob._adapter.device.public_address)
        channel = await connection.create_l2cap_channel(ClassicChannelSpec(psm=PSM))
        for piece in frame(b"before it was encrypted", piece_bytes=100):
            channel.write(piece)
        await connection.authenticate()
        await connection.encrypt()
        await made.until(lambda: bool(made.events[BOB]))
        assert made.events[BOB] == [LinkMade(ALICE, is_caller=False, name=ALICE, has_layer=False)]
        await alice.close()

    async def forge(made: Bench) -> None:
        alice, _ = [await made.radio(who, unpaired=Unpaired.REFUSE, keys=files[who]) for who in (ALICE, BOB)]
        assert await made.met(alice, BOB) == PageFailed(BOB)
        assert {type(each) for each in made.troubles} == {UnpairedError}

    run(pair)
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o600}
    run(meet)
    run(hurry)
    text = files[ALICE].read_text(encoding="utf-8")
    (key,) = {keys["link_key"]["value"] for peers in json.loads(text).values() for keys in peers.values()}
    files[ALICE].write_text(text.replace(key, "00" * 16), encoding="utf-8")
    run(forge)


def test_a_file_of_link_keys_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Who reads it can be any of the paired devices."""
    path = tmp_path / "keys"
    path.write_text("{}", encoding="utf-8")
    path.chmod(0o644)
    with pytest.raises(InvalidValueError, match="chmod 600"):
        KeyFile(ALICE, path)
