"""Joining a group over the air, by commands: owner and devices are processes, the air is software (Huang, 2.3)."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.e2e.rendezvous_processes import Programs

C, A, B, D = (f"02:00:00:00:00:0{digit}" for digit in "1ABD")


def group(*arguments: str | Path) -> str:
    """Run ``whimbrel rendezvous group`` and return what it prints."""
    command = [sys.executable, "-m", "whimbrel", "rendezvous", "group", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_listed_device_joins_and_its_token_is_verified_and_another_is_refused(tmp_path: Path) -> None:
    """Alice is on the owner's list and keeps a token that anybody can verify; Dave is told why not, and keeps none."""
    family, alice_key, dave_key = (tmp_path / f"{name}.key" for name in ("family", "alice", "dave"))
    public = group("create", family)
    shown = json.loads(group("token", alice_key, "--address", A, "--json"))
    group("token", dave_key, "--address", D)
    with Programs(C, A, B, D) as programs:
        programs.controller(C, tmp_path / "log")
        owner = programs.device(B, "admit", "Bob", "--group-key", family, "--allow", shown["device_key"])
        owner.until("accepted")
        tokens = {who: tmp_path / f"{who}.tokens" for who in (A, D)}
        seeking = ("--seek-name", "Bob", "--within", "50s")
        dave = programs.device(D, f"join {public}", "Dave", "--key", dave_key, "--tokens", tokens[D], *seeking)
        assert dave.join() == 1
        assert dave.all("not admitted") == [
            {"what": "not admitted", "address": B, "reason": "3115: the owner of the group does not admit this device"}
        ]
        owner.until("accepted", 2)  # it is published again
        alice = programs.device(A, f"join {public}", "Alice", "--key", alice_key, "--tokens", tokens[A], *seeking)
        assert alice.join() == 0
        assert [each["address"] for each in alice.all("joined")] == [B]
        assert owner.until("admitted")["address"] == A
        assert owner.end() == 0
    assert tokens[D].read_text(encoding="ascii") == ""
    named, token = tokens[A].read_text(encoding="ascii").split()
    assert named == public
    assert group("verify", token, "--group", public, "--address", A).startswith(f"member: {A} until ")


def test_an_owner_is_asked_on_its_terminal_and_its_word_is_done(tmp_path: Path) -> None:
    """The question names the key; what is neither yes nor no is asked again. Before, nobody was there."""
    family, alice_key, tokens = tmp_path / "family.key", tmp_path / "alice.key", tmp_path / "alice.tokens"
    public = group("create", family)
    key = json.loads(group("token", alice_key, "--address", A, "--json"))["device_key"]
    ours, theirs = pty.openpty()
    try:
        with Programs(C, A, B) as programs:
            more = ("--key", alice_key, "--tokens", tokens, "--seek-address", B, "--within")
            alone = programs.device(A, f"join {public}", "Alice", *more, "0.1s")
            assert alone.join() == 1
            assert alone.all("not admitted") == [{"what": "not admitted", "reason": "no owner has answered"}]
            programs.controller(C, tmp_path / "log")
            owner = programs.device(B, "admit", "Bob", "--group-key", family, "--ask", terminal=theirs)
            owner.until("accepted")
            alice = programs.device(A, f"join {public}", "Alice", *more, "50s")
            assert key in owner.until("asks to join")["reason"]
            owner.wait_for_error("[y/n]")
            os.write(ours, b"perhaps\n")
            owner.wait_for_error("[y/n]", 2)
            os.write(ours, b"y\n")
            assert alice.join() == 0
            assert len(alice.all("joined")) == 1
            assert owner.end() == 0
    finally:
        os.close(ours)
        os.close(theirs)
    assert tokens.read_text(encoding="ascii").startswith(f"{public} ")
