"""``whimbrel rendezvous``: what people and scripts see; and the controller's log, which must hold no secret."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit.rendezvous_rig import ALICE, BOB, Member, Rig

from whimbrel.cli.main import main
from whimbrel.log.reader import read
from whimbrel.log.writer import LogWriter
from whimbrel.rendezvous.controller import Note, NoteKind
from whimbrel.rendezvous.events import EventId
from whimbrel.rendezvous.journal import NoteLog, attributes_of, notification_of, subject_of
from whimbrel.rendezvous.tokens import GroupOwner
from whimbrel.sim.hall import HallScenario, run_hall

ADDRESS = "00:1A:7D:DA:71:0B"


@dataclass(frozen=True)
class Done:
    """What a finished command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``whimbrel rendezvous`` in this process, through its real entry point."""

    def invoke(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["whimbrel", "rendezvous", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main()
        shown = capsys.readouterr()
        code = exited.value.code
        return Done(code if isinstance(code, int) else 0, shown.out, shown.err)

    return invoke


def test_a_hall_is_simulated_and_its_log_kept(run: Run, tmp_path: Path) -> None:
    """Every pair is connected, and the facts are in the log in their order."""
    done = run("simulate", "--devices", "6", "--log", str(tmp_path))
    assert done.code == 0
    assert done.out.startswith("3 of 3 pairs connected\n")
    facts = list(read(tmp_path, "controller"))
    subjects = [getattr(fact, "subject", "") for fact in facts]
    assert subjects.count("rendezvous/matched") == 3
    assert [getattr(fact, "seq", 0) for fact in facts] == list(range(1, len(facts) + 1))


def test_a_simulation_as_json_is_facts_and_a_summary(run: Run) -> None:
    """Scripts read lines."""
    *facts, summary = map(json.loads, run("simulate", "--devices", "4", "--friends", "--json").out.splitlines())
    assert summary["connected"] == summary["pairs"] == 2
    assert {fact["subject"] for fact in facts} >= {"rendezvous/opened", "rendezvous/matched", "rendezvous/notified"}
    assert all("device" not in fact for fact in facts)


def test_a_hall_that_closes_too_early_is_an_honest_no(run: Run) -> None:
    """Exit 1: not everybody met."""
    assert run("simulate", "--seconds", "1").code == 1


def test_the_table_stands_beside_the_printed_one(run: Run) -> None:
    """With --json every number has a name."""
    rows = json.loads(run("table", "--trials", "50", "--json").out)
    assert rows[0]["what"] == "inquiry"
    assert rows[0]["printed"] == "0.00125, 3–5, 10.24–30.72"
    assert "paging" in run("table", "--trials", "20").out


def test_parameters_are_printed_with_their_reasons(run: Run) -> None:
    """5.3, at hand."""
    found = json.loads(run("parameters", "--json").out)
    assert {each["name"]: each["value"] for each in found}["max_subscriptions"] == 7
    assert "4.1.2 says six and argues with seven" in run("parameters").out


def test_states_are_printed_as_a_table_or_a_diagram(run: Run) -> None:
    """The docs page has the same diagram."""
    assert run("states", "--mermaid").out.count("stateDiagram-v2") == 2
    assert json.loads(run("states", "--json").out)[0]["device"] == "subscriber"
    assert "page scan" in run("states").out


@pytest.mark.parametrize(
    ("publication", "subscription", "code"),
    [
        ('{"name": "Bob"}', "{}", 0),
        ('{"name": "Bob"}', '{"name": "BOB", "class": null}', 0),
        ('{"name": "Bob", "groups": ["family"]}', "{}", 1),
        ('{"name": "Bob", "groups": ["family"]}', '{"groups": ["club", "family"]}', 0),
        ('{"address": "00:1A:7D:DA:71:0B"}', '{"address": "00-1a-7d-da-71-0b"}', 0),
        ('{"class": 4}', '{"class": 5}', 1),
        ('{"name": 4}', "{}", 2),
        ("{", "{}", 2),
        ("{}", '{"offset": 4}', 2),
        ("{}", '{"groups": [1]}', 2),
    ],
)
def test_a_match_is_explained(run: Run, publication: str, subscription: str, code: int) -> None:
    """0 it matches, 1 it does not, 2 it is no event."""
    done = run("match", publication, subscription)
    assert done.code == code
    if code < 2:
        assert done.out.startswith("match\n" if code == 0 else "no match\n")
        assert json.loads(run("match", publication, subscription, "--json").out)["match"] is (code == 0)


def test_a_group_is_made_once_and_its_secret_is_kept(run: Run, tmp_path: Path) -> None:
    """Readable by their owner only; the second call prints the same public key."""
    file = tmp_path / "family.key"
    public = run("group", "create", str(file)).out.strip()
    assert run("group", "create", str(file)).out.strip() == public
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text(encoding="ascii").split()[0] not in public


def test_the_owner_admits_a_device_of_which_it_sees_the_token_only(run: Run, tmp_path: Path) -> None:
    """The owner signs, anybody verifies; another address, group or epoch is refused with the reason."""
    family, phone = tmp_path / "family.key", tmp_path / "phone.key"
    group = run("group", "create", str(family)).out.strip()
    shown = json.loads(run("group", "token", str(phone), "--address", ADDRESS, "--json").out)
    assert run("group", "token", str(phone), "--address", ADDRESS).out.strip() == shown["token"]
    phone.unlink()  # the owner never has it
    admit = ["group", "admit", shown["token"], "--group-key", str(family), "--address", ADDRESS]
    token = run(*admit).out.strip()
    admitted = json.loads(run(*admit, "--json").out)
    assert (admitted["group"], admitted["device_key"], admitted["epoch"]) == (group, shown["device_key"], 1)
    elsewhere = run(*admit[:-1], "00:00:00:00:00:01")
    assert (elsewhere.code, elsewhere.out) == (1, "not admitted: it was issued to another address\n")
    assert run("group", "admit", "00ff", *admit[3:]).out == "not admitted: it has not the form of a token\n"
    verify = ["group", "verify", token, "--group", group, "--address"]
    assert run(*verify, ADDRESS).out.startswith(f"member: {ADDRESS} until ")
    wrong = run(*verify, "00:00:00:00:00:01", "--json")
    assert (wrong.code, json.loads(wrong.out)["member"]) == (1, False)
    assert run(*verify, ADDRESS, "--epoch", "2").code == 1
    assert run("group", "verify", "xyz", *verify[3:], ADDRESS).code == 2
    assert run("group", "verify", token, "--group", "00", "--address", ADDRESS).code == 2


def test_a_group_that_is_keyed_anew_revokes_its_tokens(run: Run, tmp_path: Path) -> None:
    """A higher epoch under the same name, or new keys: a new group."""
    family, phone = tmp_path / "family.key", tmp_path / "phone.key"
    group = run("group", "create", str(family)).out.strip()
    token = run("group", "token", str(phone), "--address", ADDRESS).out.strip()
    admit = ["group", "admit", token, "--group-key", str(family), "--address", ADDRESS]
    assert json.loads(run("group", "rekey", str(family), "--epoch", "--json").out) == {"group": group, "epoch": 2}
    second = run(*admit).out.strip()
    assert "epoch 2" in run("group", "verify", second, "--group", group, "--address", ADDRESS, "--epoch", "2").out
    other = run("group", "rekey", str(family)).out.strip()
    assert other != group
    assert json.loads(run(*admit, "--json").out)["epoch"] == 1
    assert run("group", "verify", second, "--group", other, "--address", ADDRESS).code == 1
    assert stat.S_IMODE(family.stat().st_mode) == 0o600


def test_a_key_file_that_others_can_read_is_refused(run: Run, tmp_path: Path) -> None:
    """Whoever read it could admit members, or pass for the device."""
    family, phone = tmp_path / "family.key", tmp_path / "phone.key"
    run("group", "create", str(family))
    token = run("group", "token", str(phone), "--address", ADDRESS).out.strip()
    for file in (family, phone):
        file.chmod(0o640)
    for arguments in (
        ["admit", token, "--group-key", str(family), "--address", ADDRESS],
        ["create", str(family)],
        ["rekey", str(family)],
        ["token", str(phone), "--address", ADDRESS],
    ):
        done = run("group", *arguments)
        assert (done.code, done.out) == (2, "")
        assert "mode 0640" in done.err
        assert "chmod 600" in done.err


def test_a_file_that_is_no_key_is_not_shown(run: Run, tmp_path: Path) -> None:
    """It may be a secret of another kind."""
    file = tmp_path / "note.txt"
    file.write_text("my bank's password", encoding="ascii")
    file.chmod(0o600)
    done = run("group", "create", str(file))
    assert done.code == 2
    assert "bank" not in done.err


# -- the log -----------------------------------------------------------------------------------------------------------


def test_a_fact_is_a_publication_of_the_controller() -> None:
    """Opened, matched, listed, notified, expired, renewed, flushed: each under its own subject."""
    note = Note(
        kind=NoteKind.MATCHED, id=EventId("P1"), address=BOB, other_id=EventId("S2"), other_address=ALICE, count=None
    )
    assert subject_of(note) == "rendezvous/matched"
    assert attributes_of(note) == {"event": "P1", "device": BOB, "other_event": "S2", "other_device": ALICE}
    fact = notification_of(note, node="hall", seq=4, at=7)
    assert (fact.subject, fact.publisher, fact.seq) == ("rendezvous/matched", "hall", 4)


def test_the_log_goes_on_where_it_ended_and_time_does_not_run_back(tmp_path: Path) -> None:
    """A controller that is started again appends; a clock that was set back does not stop it."""
    note = Note(kind=NoteKind.OPENED, id=EventId("P1"))
    for at in (50, 20):
        with NoteLog(LogWriter(tmp_path, "hall")) as log:
            log.append(note, at)
            log.sync()
    assert [getattr(fact, "published_at", None) for fact in read(tmp_path, "hall")] == [50, 50]


def test_no_secret_is_in_the_log(tmp_path: Path) -> None:
    """Keys, tokens, challenges and answers of a whole conversation are in no byte of it."""
    family = GroupOwner(b"f" * 32)
    rig = Rig()
    rig.members = {who: Member(who, family) for who in (ALICE, BOB)}
    rig.publish(BOB, keys=(family.public,))
    rig.subscribe(ALICE, keys=(family.public,))
    with NoteLog(LogWriter(tmp_path, "hall")) as log:
        for command in rig.commands:
            if isinstance(command, Note):
                log.append(command, 1)
    data = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    secrets = [family.public, *(each.keys.public for each in rig.members.values())]
    secrets += [ask.challenge for each in rig.members.values() for ask in each.asked]
    secrets += [token for each in rig.members.values() for token in each.tokens.values()]
    assert data
    for secret in secrets:
        assert secret not in data
        assert secret.hex().encode() not in data
    assert BOB.encode() not in data


def test_the_same_scenario_gives_the_same_report() -> None:
    """A report carries its seed; with it, everything can be had again."""
    scenario = HallScenario(devices=8, seconds=90, seed=4)
    assert run_hall(scenario) == run_hall(scenario)


def test_a_discoverable_publisher_cannot_choose_its_friends(run: Run) -> None:
    """Inquiry tells no groups, so the controller cannot restrict what it publishes for a device (4.1.1)."""
    done = run("simulate", "--friends", "--discoverable")
    assert (done.code, "inquiry tells no groups" in done.err) == (2, True)


@pytest.mark.parametrize(("is_discoverable", "is_restricted"), [(True, False), (False, True), (False, False)])
def test_everybody_meets(*, is_discoverable: bool, is_restricted: bool) -> None:
    """Direct and indirect publications, to everybody and to friends."""
    scenario = HallScenario(devices=30, seconds=240, friends_only=is_restricted, discoverable=is_discoverable)
    report = run_hall(scenario)
    assert report.connected == report.pairs == 15
    assert max(report.waits_s) < 33.28 + 2.56 + 5.12


HALL = ("controller", "--transport", "nonsense:1", "--log", "hall")
NOWHERE = ("--transport", "nonsense:1", "--name", "x")
ALICES = ("--key", "kept.key", "--tokens", "alice.tokens")
ADMIT = ("device", "admit", *NOWHERE, "--group-key", "kept.key")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (HALL, "no adapter at 'nonsense:1': unknown transport scheme; allowed are usb:0"),
        (("controller", "--log", "hall"), "transport: found nothing, allowed is a value, by --transport"),
        ((*HALL, "--name", "hall"), "allowed is a name that begins with 'whimbrel-controller'"),
        (("device", "publish", *NOWHERE), "no adapter at 'nonsense:1'"),
        (("device", "publish", *NOWHERE, "--group", "ab"), "--group: found 2 characters"),
        (("device", "publish", *NOWHERE, "--group", "ab" * 32), "--key: found nothing"),
        (("device", "publish", *NOWHERE, "--key", "open.key"), "chmod 600 open.key"),
        (("device", "subscribe", *NOWHERE, "--seek-address", "x"), "six pairs of hexadecimal digits"),
        (("device", "renew", "X1", *NOWHERE), "P or S and a number"),
        (("device", "listen", *NOWHERE, "--unpaired", "refuse"), "link_keys: found nothing"),
        (("device", "listen", *NOWHERE, "--unpaired", "maybe"), "accept, refuse, pair"),
        (("device", "listen", "--transport", "nonsense:1", "--name", "x" * 249), "name: found"),
        (("device", "join", "ab", *NOWHERE, *ALICES), "GROUP: found 2 characters, allowed is a group's public key"),
        (("device", "join", "ab" * 32, *NOWHERE, *ALICES), "no adapter at 'nonsense:1'"),
        (("device", "join", "ab" * 32, *NOWHERE, "--key", "open.key", *ALICES[2:]), "chmod 600 open.key"),
        (("device", "join", "ab" * 32, *NOWHERE, "--key", "none.key", *ALICES[2:]), "none.key"),
        (("device", "join", "ab" * 32, *NOWHERE, *ALICES[:3], "."), "error: .: Is a directory"),
        (("device", "join", "ab" * 32, *NOWHERE, *ALICES[:3], "kept.key"), "line 1 of kept.key: found 64 characters"),
        (("device", "join", "ab" * 32, *NOWHERE, *ALICES[:2]), "--tokens"),
        ((*ADMIT, "--anyone"), "no adapter at 'nonsense:1'"),
        (ADMIT, "who is admitted: found nothing, allowed is one of --allow, --anyone and --ask"),
        ((*ADMIT, "--anyone", "--allow", "ab" * 32), "who is admitted: found more than one"),
        ((*ADMIT, "--allow", "02:00:00:00:00:01"), "--allow: found 17 characters, allowed is a device's public key"),
        ((*ADMIT, "--ask"), "--ask: found standard input that is not a terminal"),
        (("device", "admit", *NOWHERE, "--group-key", "open.key", "--anyone"), "chmod 600 open.key"),
        (("air", "here"), "an address such as 02:00:00:00:00:01"),
        (("air", "02:00:00:00:00:01@1.2.3,4"), "metres behind the @"),
        (("demo", "--radio", "usb"), "allowed is simulated or air"),
        (("demo", "--radio", "air", "--park"), "real radios have no park"),
    ],
)
def test_what_a_daemon_cannot_use_is_refused_with_what_is_allowed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    """Exit code 2 and one message that names what was found and what to do; never a traceback, never a hang."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "open.key").write_text("ab" * 32, encoding="ascii")
    (tmp_path / "open.key").chmod(0o644)
    (tmp_path / "kept.key").write_text("ab" * 32, encoding="ascii")
    (tmp_path / "kept.key").chmod(0o600)
    done = run(*arguments)
    assert done.code == 2
    assert said in done.err
    assert done.out == ""


def test_the_demo_shows_three_devices(run: Run) -> None:
    """On the simulated radio, with park and without: Bob publishes, Carol is found, Alice meets both."""
    for park in ((), ("--park",)):
        done = run("demo", *park)
        assert (done.code, done.out.splitlines()[-1]) == (0, "2 of 2 meetings")
        assert "Bob: discoverable for 0.0 s" in done.out


def test_the_demo_runs_on_the_real_stack(run: Run) -> None:
    """Radios that exist in software, everything above them real."""
    done = run("demo", "--radio", "air")
    assert (done.code, done.out.splitlines()[-1]) == (0, "2 of 2 meetings")


def test_the_use_of_a_phones_address_is_logged_and_shown_by_status(run: Run, tmp_path: Path) -> None:
    """Headsets come before and after their phones; the status says in whose place the controller acts, and acted."""
    done = run("simulate", "--devices", "2", "--dumb", "2", "--log", str(tmp_path))
    assert done.code == 0
    assert "2 of 2 headsets connected to their phones" in done.out
    shown = run("status", str(tmp_path))
    assert shown.code == 0
    assert "pages for 02:00:00:01:00:00: " in shown.out
    found = json.loads(run("status", str(tmp_path), "--json").out)
    uses = {each["address"]: each for each in found["addresses_of_others"]}
    assert set(uses) == {"02:00:00:01:00:00", "02:00:00:01:00:01"}
    assert sum(each["woken"] for each in uses.values()) >= 1, "one headset came after its phone"
    assert sum(each["held"] for each in uses.values()) == 1, "and one before"
    assert found["facts"]["stand-in"] >= 8


def test_a_controller_on_an_adapter_refuses_dumb_devices_with_one_sentence(run: Run, tmp_path: Path) -> None:
    """No adapter can answer under another address: exit 2 before any adapter is opened, and nothing is logged."""
    pair = "00:00:00:00:00:0D=00:00:00:00:00:0A"
    done = run("controller", "--transport", "usb:0", "--log", str(tmp_path / "hall"), "--dumb", pair)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "no adapter can answer in the place of another device" in done.err
    assert not (tmp_path / "hall").exists()


def test_the_status_of_a_folder_that_is_no_log_is_refused(run: Run, tmp_path: Path) -> None:
    """Nothing is shown as if a controller had logged nothing."""
    assert run("status", str(tmp_path)).code == 2
