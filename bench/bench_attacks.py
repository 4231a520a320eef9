"""What a well-behaved client notices of cost attacks: its times, the broker's memory, and what the attacker is told.

Each attack (``attacks.py``) has a broker of its own with its data in a temporary directory. A publisher and a
subscriber (QoS 1, 100 messages a second) and a client that pings (``well_behaved.py``) are one process, the attacker
is another, which yields to the others (nice 5): in truth it would not run on the broker's machine at all.
``ATTACKS=pattern`` in the environment runs only those with that word in their name.
A quick run has one broker for all attacks that want the same settings: a start takes longer than such an attack.
Rule: preparing an attack (100,000 retained messages, 20,000 sessions) is not measured.
Rule: a time is printed, never asserted; what is asserted is that nothing is lost and that memory stays within bounds.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from attacks import ATTACKS, NEWCOMERS, Attack, Target, attack
from measure import Check, Grid, Report
from well_behaved import USER, Experience, experience
from whimbrel.broker.access.passwords import Cost
from whimbrel.broker.access.users import Users
from whimbrel.sim.load.processes import Served, cpu_s, raise_file_limit, resident_bytes, serve

__all__ = ["run"]

_PER_SECOND = 100.0
_WITHIN_MS = 50.0
_MIB = 1 << 20
_HASH_MIB = 128
"""The broker's default."""
_NICE = 5
_FILES = 20_000
_PREPARE_S = 400.0
_PORTS = re.compile(r"\b(mqtt|mqtts|ws|http)=([0-9]+)")
_BUSY = 1.0
"""From this load average on, the machine has other work, which the first row shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What one attack did."""

    attack: Attack
    experience: Experience
    told: Mapping[str, int]
    before_bytes: int
    most_bytes: int
    cpu_s: float
    load_average: float
    is_full: bool

    @property
    def grown_mib(self) -> float:
        return (self.most_bytes - self.before_bytes) / _MIB

    def row(self) -> tuple[str | float | None, ...]:
        """Return the attack's row of the table."""
        fared = self.experience
        return (
            self.attack.name,
            float(fared.sent),
            fared.time_of(0.5) * 1e3,
            fared.time_of(0.95) * 1e3,
            fared.time_of(0.99) * 1e3,
            fared.time_of(1.0) * 1e3,
            fared.ping_of(0.99) * 1e3,
            "yes" if fared.time_of(0.99) * 1e3 < _WITHIN_MS else "no",
            self.before_bytes / _MIB,
            self.most_bytes / _MIB,
            float(self.attack.allowed_mib),
            self.cpu_s,
            f"{self.load_average:.1f}",
        )

    def checks(self) -> Iterator[Check]:
        """Claim what must hold on every machine."""
        name, fared = self.attack.name, self.experience
        yield Check(f"{name}: {fared.sent:,} messages of the well-behaved client, {fared.lost:,} lost", not fared.lost)
        yield Check(f"{name}: the well-behaved client stayed connected", fared.is_connected)
        is_bounded = self.grown_mib <= self.attack.allowed_mib
        yield Check(f"{name}: memory grew by no more than {self.attack.allowed_mib} MiB", is_bounded)
        for wanted in self.attack.wanted if self.is_full else ():
            yield Check(f"{name}: {wanted}", any(word.startswith(wanted) for word in self.told))


def run(*, quick: bool) -> Report:
    """Run every attack; *quick* with small sizes, which proves that nothing is lost and nothing ends the broker."""
    seconds, part = (0.2, 0.01) if quick else (12.0, 1.0)
    report = Report("attacks", packages=("whimbrel", "uvloop"))
    raise_file_limit(_FILES)  # of the brokers, which are started from here
    chosen = [each for each in ATTACKS if os.environ.get("ATTACKS", "") in each.name]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as client, ProcessPoolExecutor(1, context, os.nice, (_NICE,)) as attacker:
        found = [
            each_found
            for attacks in _by_broker(chosen, is_shared=quick)
            for each_found in _attacked(attacks, client, attacker, seconds=seconds, part=part)
        ]
    report.grids += [_times(found), _answers(found)]
    for each_found in found:
        report.checks += each_found.checks()
    report.notes += _notes(found, seconds)
    return report


def _by_broker(chosen: list[Attack], *, is_shared: bool) -> list[list[Attack]]:
    """Return the attacks that have a broker together."""
    if not is_shared:
        return [[each] for each in chosen]
    groups: dict[tuple[object, ...], list[Attack]] = {}
    for each in chosen:
        groups.setdefault((each.settings, each.options, each.has_users, each.has_tls), []).append(each)
    return list(groups.values())


def _attacked(
    attacks: list[Attack], client: ProcessPoolExecutor, attacker: ProcessPoolExecutor, *, seconds: float, part: float
) -> Iterator[_Found]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whimbrel-attacks-")))
        served = stack.enter_context(_served(attacks[0], folder, hash_mib=_HASH_MIB if part >= 1 else 1))
        for number, which in enumerate(attacks):
            own = folder / f"attack-{number}"
            own.mkdir()
            target = Target(ports=_ports(folder), folder=own, seconds=seconds, part=part)
            yield _attacked_once(which, served, target, client, attacker)


def _attacked_once(
    which: Attack, served: Served, target: Target, client: ProcessPoolExecutor, attacker: ProcessPoolExecutor
) -> _Found:
    attacking = attacker.submit(attack, which.name, target)
    _wait_for(target.folder / "prepared", attacking)
    ready = target.folder / "ready"
    fared = client.submit(experience, target.port, seconds=target.seconds, per_second=_PER_SECOND, ready=ready)
    _wait_for(ready, fared)
    before, cpu = resident_bytes(served.pid), _cpu_s(served.pid)
    (target.folder / "begin").touch()
    most = _most_bytes(served, attacking, fared)
    return _Found(
        attack=which,
        experience=fared.result(),
        told=attacking.result(),
        before_bytes=before,
        most_bytes=max(most, before),
        cpu_s=_cpu_s(served.pid) - cpu,
        load_average=os.getloadavg()[0],
        is_full=target.part >= 1,
    )


def _cpu_s(pid: int) -> float:
    return cpu_s(pid) or 0.0


def _most_bytes(served: Served, *busy: Future[Counter[str]] | Future[Experience]) -> int:
    """Return the most memory the broker has until both are done."""
    most = 0
    while not all(each.done() for each in busy):
        most = max(most, resident_bytes(served.pid))
        time.sleep(0.02)
    return most


def _wait_for(path: Path, work: Future[Counter[str]] | Future[Experience]) -> None:
    deadline = time.monotonic() + _PREPARE_S
    while not path.exists():
        if work.done():
            work.result()  # raises what ended it
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} after {_PREPARE_S:g} s")
        time.sleep(0.01)


# -- the broker --------------------------------------------------------------------------------------------------------


def _served(which: Attack, folder: Path, *, hash_mib: int) -> AbstractContextManager[Served]:
    """Run a broker with what the attack needs, which hashes passwords with so much memory."""
    settings, options = which.settings, list(which.options)
    if which.has_users:
        users = Users.read(folder / "users", missing_ok=True)
        for name, password in (USER, *NEWCOMERS.items()):
            users.add(name, password.decode(), cost=Cost.of_memory(hash_mib))
        settings += f'[access]\nusers = "{folder / "users"}"\npassword_hash_mib = {hash_mib}\n'
    if which.has_tls:
        certificate, key = _certificate(folder)
        options += ["--tls-port", "0", "--tls-certificate", str(certificate), "--tls-key", str(key)]
    config = folder / "broker.toml"
    config.write_text(settings, encoding="utf-8")
    return serve(folder, "--config", str(config), *options)


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Return a certificate that signs itself, and its key."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    private, today = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .sign(private, hashes.SHA256())
    )
    certificate, key = folder / "broker.pem", folder / "broker.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return certificate, key


def _ports(folder: Path) -> dict[str, int]:
    text = (folder / "broker.log").read_text(encoding="utf-8", errors="replace")
    ports: dict[str, int] = {}
    for name, port in _PORTS.findall(text):  # the first are of the line that names them; later lines name clients
        ports.setdefault(name, int(port))
    return ports


# -- how it is told ----------------------------------------------------------------------------------------------------


def _times(found: list[_Found]) -> Grid:
    headings = (
        "attack",
        "messages",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "most ms",
        "ping p99 ms",
        f"p99 < {_WITHIN_MS:g} ms",
        "MiB before",
        "MiB at most",
        "MiB more allowed",
        "core s",
        "load",
    )
    return Grid("A well-behaved client beside each attack", headings, tuple(each.row() for each in found))


def _answers(found: list[_Found]) -> Grid:
    rows = tuple(
        (each.attack.name, ", ".join(f"{word}: {times:,}" for word, times in sorted(each.told.items())))
        for each in found
    )
    return Grid("What the attacker was told, and how often", ("attack", "answers"), rows)


def _notes(found: list[_Found], seconds: float) -> Iterator[str]:
    yield f"Each attack lasts {seconds:g} s; the client's messages are due {_PER_SECOND:g} times a second, QoS 1."
    yield "A message's time is from when it was due to when the subscriber had it: a stall is counted in full."
    yield "Core seconds are the broker's own, all its threads, until attacker and client are done."
    yield "The load average includes the broker, the client and the attacker."
    quiet = next((each for each in found if not each.told), None)
    if quiet is not None and (quiet.load_average > _BUSY or quiet.experience.time_of(0.99) * 1e3 >= _WITHIN_MS / 2):
        p99_ms = quiet.experience.time_of(0.99) * 1e3
        yield (
            f"The machine was busy with other work: load average {quiet.load_average:.1f} and a p99 of {p99_ms:.1f} ms "
            "without any attack. Times beside attacks are so much too long."
        )
