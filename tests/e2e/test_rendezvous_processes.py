"""A controller and devices on Bumble's stack, each a process of its own, and the air another: HCI over TCP."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.rendezvous_processes import Programs

from whimbrel.log.reader import read
from whimbrel.model.notification import Notification

C, A, B, D, F = (f"02:00:00:00:00:0{digit}" for digit in "1ABDF")


def facts(log: Path) -> list[tuple[str, dict[str, object]]]:
    """Return what is in a controller's log: subject and attributes."""
    return [
        (str(each.subject), dict(each.attributes)) for each in read(log, "controller") if isinstance(each, Notification)
    ]


def member(folder: Path, name: str, address: str) -> tuple[Path, Path, str]:
    """Make a device's key and its token of the family; return both files and the family's public key."""

    def group(*arguments: str | Path) -> str:
        command = [sys.executable, "-m", "whimbrel", "rendezvous", "group", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    family, key, tokens = folder / "family.key", folder / f"{name}.key", folder / f"{name}.tokens"
    public = group("create", family)
    device_token = group("token", key, "--address", address)
    token = group("admit", device_token, "--group-key", family, "--address", address)
    tokens.write_text(f"{public} {token}\n", encoding="ascii")
    return key, tokens, public


def test_five_processes_meet_verify_talk_part_and_renew(tmp_path: Path) -> None:
    """One publishes for its group, one is found by inquiry, one seeks both; then each is there again."""
    bob_key, bob_tokens, family = member(tmp_path, "bob", B)
    alice_key, alice_tokens, _ = member(tmp_path, "alice", A)
    with Programs(C, A, B, D) as programs:
        controller = programs.controller(C, tmp_path / "log")
        bob = programs.device(
            B, "publish", "Bob", "--key", bob_key, "--tokens", bob_tokens, "--group", family, "--say", "I am Bob"
        )
        dave = programs.device(D, "listen", "Dave", "--say", "I am Dave")
        bob.until("accepted")
        assert dave.until("accepted")["id"][0] == "P"  # the controller found it and published for it
        seeking = ("--key", alice_key, "--tokens", alice_tokens, "--group", family, "--say", "I am Alice", "--once")
        alice = programs.device(A, "subscribe", "Alice", "--seek-name", "bob", *seeking)
        alice.until("parted")
        assert alice.join() == 0
        verified = {"address": B, "group": family, "skips_authentication": True}
        assert alice.all("verified") == [{"what": "verified", **verified}]
        assert [each["text"] for each in alice.all("data")] == ["I am Bob"]
        assert bob.until("data")["text"] == "I am Alice"
        assert [each["is_caller"] for each in alice.all("introduced")] == [True]
        bob.until("accepted", 2)  # its publication is renewed, under the same identifier
        assert len({each["id"] for each in bob.all("accepted")}) == 1

        alice = programs.device(A, "subscribe", "Alice", "--seek-name", "Dave", "--say", "I am Alice", "--once")
        alice.until("parted")
        assert dave.until("data")["text"] == "I am Alice"
        assert bob.end() == dave.end() == controller.end() == 0
    assert bob.all("exposure")[0]["discoverable_s"] == 0
    assert bob.all("exposure")[0]["connectable_s"] > 0
    log = facts(tmp_path / "log")
    subjects = [subject for subject, _ in log]
    assert subjects.count("rendezvous/matched") == subjects.count("rendezvous/notified") == 2
    assert "rendezvous/renewed" in subjects
    hidden = next(attributes for subject, attributes in log if subject == "rendezvous/matched")
    assert "device" not in hidden
    assert [a["device"] for s, a in log if s == "rendezvous/opened" and a.get("detail") == "indirect"] == [D]


def test_a_device_out_of_reach_is_matched_once(tmp_path: Path) -> None:
    """Both are in reach of the controller, not of each other: the page times out, and the pair is remembered."""
    with Programs(C, f"{A}@-9,0", f"{F}@9,0") as programs:
        controller = programs.controller(C, tmp_path / "log")
        far = programs.device(F, "publish", "Far")
        far.until("accepted")
        alice = programs.device(A, "subscribe", "Alice", "--seek-name", "Far")
        alice.until("not reached")
        far.until("accepted", 2)  # it was told that nobody came, and is published again
        alice.until("accepted", 2)  # seeks again: the two would match
        assert alice.end() == far.end() == controller.end() == 0
    subjects = [subject for subject, _ in facts(tmp_path / "log")]
    assert subjects.count("rendezvous/matched") == 1
    assert subjects.count("rendezvous/opened") >= 3
    assert "introduced" not in alice.kinds


def test_a_controller_that_is_killed_leaves_a_whole_log_and_is_found_again(tmp_path: Path) -> None:
    """Kill -9: devices notice, go back to what they were, come back and renew; the log has no gap."""
    settings = tmp_path / "hall.toml"
    settings.write_text("[parameters]\npresence_us = 2_000_000\nconnect_us = 2_000_000\n", encoding="utf-8")
    with Programs(C, A, B) as programs:
        controller = programs.controller(C, tmp_path / "log", "--config", settings)
        bob = programs.device(B, "publish", "Bob")
        bob.until("accepted")
        bob.wait_for(lambda _: bool(facts(tmp_path / "log")))  # on disk
        controller.end(signal.SIGKILL)
        controller = programs.controller(C, tmp_path / "log", "--config", settings)
        bob.until("accepted", 2)
        alice = programs.device(A, "subscribe", "Alice", "--seek-name", "Bob", "--once", "--within", "60s")
        alice.until("introduced")
        assert alice.end() == bob.end() == controller.end() == 0
    subjects = [subject for subject, _ in facts(tmp_path / "log")]
    assert subjects[:2] == ["rendezvous/opened", "rendezvous/opened"]
    assert "rendezvous/notified" in subjects
    verify = [sys.executable, "-m", "whimbrel", "log", "verify", str(tmp_path / "log")]
    assert subprocess.run(verify, capture_output=True, text=True, check=True).stdout.startswith("ok: ")
