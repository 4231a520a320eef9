"""Ten thousand devices over simulated controllers: what a match costs, and that nothing grows without bound (micro)."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from measure import Check, Figure, Grid, Report
from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller import Command, Connected, Controller, Disconnected, Parameters, Said
from whimbrel.rendezvous.controller.commands import Disconnect, Note, NoteKind, Send
from whimbrel.rendezvous.events import Address, GroupKey, Publication, Subscription, address_from
from whimbrel.rendezvous.radio.simulated.table import PRINTED, measure_table
from whimbrel.rendezvous.refusals import Refusal
from whimbrel.rendezvous.tokens import DeviceKeys, GroupOwner
from whimbrel.rendezvous.wire import encode

__all__ = ["run"]

_SEED = 29
_PER_CONTROLLER = 250
_STEP_US = 150_000
"""Time between two requests of the crowd: nobody is too fast."""


@dataclass(slots=True)
class _Found:
    """What the controllers of one run told."""

    match_s: list[float] = field(default_factory=list)
    open_s: list[float] = field(default_factory=list)
    matches: int = 0
    idle: int = 0
    left: int = 0
    most: dict[str, int] = field(default_factory=dict)

    def look(self, core: Controller) -> None:
        """Remember the largest size of everything."""
        for name, size in core.sizes().items():
            self.most[name] = max(self.most.get(name, 0), size)


def run(*, quick: bool) -> Report:
    """Measure everything; *quick* only proves that it runs and that the results are right."""
    controllers = 2 if quick else 40
    report = Report("rendezvous", packages=("whimbrel", "cbor2", "cryptography"))
    plain, friends, flood = _Found(), _Found(), _Found()
    for number in range(controllers):
        _introduce(plain, number, None)
    for number in range(1 if quick else 4):
        _introduce(friends, number, GroupOwner(bytes([number]) * 32))
    _flood(flood, 2_000 if quick else 100_000)
    half = controllers * _PER_CONTROLLER // 2
    report.figures += [
        Figure("devices", controllers * _PER_CONTROLLER, ""),
        Figure("core time of a match without tokens, median", _median(plain.match_s) * 1e6, "µs"),
        Figure("the same, the fastest tenth within", _quantile(plain.match_s, 0.1) * 1e6, "µs"),
        Figure("the same, 99 of 100 within", _quantile(plain.match_s, 0.99) * 1e6, "µs"),
        Figure("core time of a publication that stays open, median", _median(plain.open_s) * 1e6, "µs"),
        Figure("core time of a match with tokens of both parties, median", _median(friends.match_s) * 1e6, "µs"),
    ]
    limits = Parameters()
    report.checks += [
        Check(f"all {half:,} pairs are matched, each once", plain.matches == half),
        Check("a match without tokens takes less than 100 µs of core time", _median(plain.match_s) < 100e-6 or quick),
        Check("idle devices are disconnected, and nothing is left of them", (plain.idle, plain.left) == (2 * half, 0)),
        Check("with tokens, too, all pairs are matched", friends.matches == len(friends.match_s)),
        Check(
            "a flood leaves no cache above its bound", flood.most["pairs"] <= limits.remembered >= flood.most["removed"]
        ),
        Check("nor more devices than there are seats", flood.most["devices"] <= limits.max_members),
        Check("nor more events than eight a device", flood.most["events"] <= 8 * limits.max_members),
    ]
    rows = measure_table(200 if quick else 20_000, random.Random(_SEED))
    report.grids.append(
        Grid(
            "Table 2.1 on the simulated radio, seconds",
            ("what", "least", "average", "99.9% within", "most", "printed: least, average, most"),
            tuple(
                (row.what, row.minimum_s, row.average_s, row.most_s, row.maximum_s, PRINTED.get(row.what))
                for row in rows
            ),
        )
    )
    report.notes += [
        f"Each controller has {_PER_CONTROLLER} devices: half publish and sleep, the others each seek one by name.",
        "A match is timed from the bytes of the subscription to the commands that notify both, in processor time.",
        "The flood: any bytes, connections, disconnections and requests from a thousand addresses, at random.",
        "Table 2.1: the row inquiry is the mean of 0, 1 and 2 voice links, which the printed span stands for.",
    ]
    return report


def _introduce(found: _Found, number: int, owner: GroupOwner | None) -> None:
    """Let the devices of one controller find each other, and leave them idle."""
    core = Controller(address=_address(1), nonce_key=bytes(32))
    keys = () if owner is None else (owner.public,)
    who = [_address(0x10000 * (number + 1) + each) for each in range(_PER_CONTROLLER)]
    proofs = _Proofs(owner, who)
    now = 0
    for place, each in enumerate(who[::2]):
        now += _STEP_US
        proofs.perform(core, core.receive(Connected(address=each), now=now), now)
        wish = Publication(address=each, clock_offset=1, name=f"device {place}", device_class=place % 7, keys=keys)
        data = encode(m.Publish(wish))
        start = time.process_time()
        commands = core.receive(Said(each, data), now=now)
        found.open_s.append(time.process_time() - start)
        proofs.perform(core, commands, now)
    order = list(range(len(who) // 2))
    random.Random(_SEED + number).shuffle(order)
    for place in order:
        now += _STEP_US
        each = who[2 * place + 1]
        proofs.perform(core, core.receive(Connected(address=each), now=now), now)
        data = encode(m.Subscribe(Subscription(name=f"DEVICE {place}", keys=keys)))
        start = time.process_time()
        commands = core.receive(Said(each, data), now=now)
        if owner is not None:
            commands += proofs.prove(core, commands, now)
        found.match_s.append(time.process_time() - start)
        found.matches += sum(isinstance(each, Note) and each.kind is NoteKind.MATCHED for each in commands)
        proofs.perform(core, commands, now)
        found.look(core)
    while (due := core.next_due) is not None:
        now = max(now, due)
        commands = core.timer(now=now)
        found.idle += sum(isinstance(each, Disconnect) and each.reason is Refusal.IDLE for each in commands)
        while core.is_busy:
            found.idle += sum(isinstance(each, Disconnect) for each in core.timer(now=now))
    found.left += core.sizes()["devices"] + core.sizes()["events"]


class _Proofs:
    """Devices that note what they hear and prove what they are."""

    def __init__(self, owner: GroupOwner | None, who: list[Address]) -> None:
        self._keys = {each: DeviceKeys(each.encode().ljust(32, b".")) for each in who} if owner is not None else {}
        self._tokens: dict[Address, bytes] = {}
        if owner is not None:
            for each, keys in self._keys.items():
                self._tokens[each] = owner.admit(keys.token(each), device_key=keys.public, peer=each, expires_at=10**15)

    def prove(self, core: Controller, commands: list[Command], now: int) -> list[Command]:
        """Answer every question in *commands*."""
        done: list[Command] = []
        for command in commands:
            if isinstance(command, Send) and isinstance(command.message, m.Ask):
                asked, keys = command.message, self._keys[command.address]
                answer = keys.answer(
                    asked.challenge, group=GroupKey(asked.group), address=command.address, controller=_address(1)
                )
                token = self._tokens[command.address]
                proof = m.Proof(
                    group=asked.group, challenge=asked.challenge, device_key=keys.public, answer=answer, token=token
                )
                done += core.receive(Said(command.address, encode(proof)), now=now)
        return done

    def perform(self, core: Controller, commands: list[Command], now: int) -> None:
        """Note every notification in *commands*."""
        for command in commands:
            if isinstance(command, Send) and isinstance(command.message, m.Matched | m.WakeUp):
                core.receive(Said(command.address, encode(m.Noted(command.message.id))), now=now)


def _flood(found: _Found, steps: int) -> None:
    """Do anything, fast and in no order."""
    dice = random.Random(_SEED)
    core = Controller(address=_address(1), nonce_key=bytes(32))
    crowd = [_address(0x900000 + each) for each in range(1_000)]
    now = 0
    for _ in range(steps):
        now += dice.randrange(20_000)
        who = dice.choice(crowd)
        roll = dice.random()
        if roll < 0.3:
            core.receive(Connected(address=who), now=now)
        elif roll < 0.4:
            core.take([Disconnected(each) for each in dice.sample(crowd, 20)], now=now)
        elif roll < 0.5:
            core.receive(Said(who, dice.randbytes(dice.randrange(60))), now=now)
        elif roll < 0.75:
            wish = Publication(address=who, clock_offset=1, name=str(dice.randrange(50)), device_class=0)
            core.receive(Said(who, encode(m.Publish(wish))), now=now)
        else:
            wanted = Subscription(name=str(dice.randrange(50)))
            core.receive(Said(who, encode(m.Subscribe(wanted))), now=now)
        found.look(core)


def _median(values: list[float]) -> float:
    return _quantile(values, 0.5)


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _address(number: int) -> Address:
    return address_from(number.to_bytes(6, "big"))
