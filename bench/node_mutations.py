"""Which errors in the node's code the tests against the naive twins find: thirty mutations, one at a time.

    python bench/node_mutations.py [NAME …] [--json] [--list] [--check]

Each mutation replaces one text in one file of a temporary copy of the tree, where the tests that it names then run
until the first failure. It is killed if they fail, or do not end, and has survived if they pass.
Rule: the text to replace stands exactly once in its file. A change of that code moves the mutation with it, to where
the new code says the same.
Exit status: 0 if all are killed, 1 if one survived, 2 if one cannot be tried: its text is not there, the tests fail
without it, or cannot even be collected with it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MUTATIONS", "Mutation", "main"]

_ROOT = Path(__file__).parents[1]
_COPIED = ("src", "tests", "pyproject.toml")
_PASSED, _FAILED = 0, 1
"""The exit codes of pytest that are an answer."""
_MAX_S = 1_200
NODE_TESTS = ("tests/property/test_node.py",)


class BrokenMutationError(Exception):
    """A mutation that cannot be tried. Reaction: adapt it to the code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One error that somebody could make: *before* becomes *after* in *file*, and *tests* are to find it."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...] = NODE_TESTS

    def apply_to(self, root: Path) -> None:
        """Make the error in the tree below *root*."""
        (root / self.file).write_text(self.mutated(root), encoding="utf-8")

    def mutated(self, root: Path) -> str:
        """Return the text of the file with the error."""
        text = (root / self.file).read_text(encoding="utf-8")
        if text.count(self.before) != 1:
            raise BrokenMutationError(
                f"{self.name}: {self.file} has the text to replace {text.count(self.before)} times, not once; "
                f"adapt the mutation to the code:\n{self.before}"
            )
        return text.replace(self.before, self.after)


_STATE = "src/whimbrel/broker/state/broker_state.py"
_NODE = "src/whimbrel/node/node.py"
_CLIENTS = "src/whimbrel/node/clients.py"
_WILLS = "src/whimbrel/node/wills.py"
_RETAINED = "src/whimbrel/node/retained.py"
_DECISIONS = "src/whimbrel/node/policies.py"
_HELD = "src/whimbrel/node/held.py"
_ROWS = "src/whimbrel/hold/rows.py"

MUTATIONS = (
    # -- clients -----------------------------------------------------------------------------------------------------
    Mutation(
        name="a DISCONNECT does not change the session expiry",
        file=_CLIENTS,
        before="                client.expiry_us = fact.session_expiry_us\n",
        after="                pass\n",
    ),
    Mutation(
        name="a PUBREL frees every packet identifier",
        file=_CLIENTS,
        before="client.received.discard(fact.packet_id or 0)",
        after="client.received.clear()",
    ),
    Mutation(
        name="the row of a publisher of QoS 2 is not noted",
        file=_CLIENTS,
        before='            self._touch(("client", client.id))\n\n    def await_completion',
        after="\n    def await_completion",
    ),
    Mutation(
        name="the row of a receiver of QoS 2 is not noted",
        file=_CLIENTS,
        before='            client.recount()\n            self._touch(("client", device))\n',
        after="            client.recount()\n",
    ),
    Mutation(
        name="a released session keeps its owner",
        file=_CLIENTS,
        before="released.owner, released.is_unclaimed = None, True",
        after="released.is_unclaimed = True",
    ),
    Mutation(
        name="the row of a client outlives its session",
        file=_CLIENTS,
        before='        self._touch(("client", client_id))\n        gone',
        after="        gone",
    ),
    Mutation(
        name="a session without a user is unclaimed",
        file=_CLIENTS,
        before="client.is_unclaimed = fact.owner is None and fact.confirms is None",
        after="client.is_unclaimed = fact.owner is None",
    ),
    Mutation(
        name="the two sets of identifiers are restored crosswise",
        file=_CLIENTS,
        before="client.received, client.releasing = set(received), set(releasing)",
        after="client.received, client.releasing = set(releasing), set(received)",
    ),
    Mutation(
        name="what a session that ends with its connection wants is fsynced",
        file=_STATE,
        before="client.expiry_us and self.terms.granted_qos",
        after="self.terms.granted_qos",
    ),
    # -- receipts ----------------------------------------------------------------------------------------------------
    Mutation(
        name="every receipt of QoS 2 waits for PUBCOMP",
        file=_NODE,
        before="        if outcome is Outcome.DELIVERED:\n            if qos is None:",
        after="        if True:\n            if qos is None:",
    ),
    Mutation(
        name="every delivery of QoS 1 waits for PUBCOMP",
        file=_NODE,
        before="            if qos == EXACTLY_ONCE:\n                self.clients",
        after="            if qos:\n                self.clients",
    ),
    # -- retained ----------------------------------------------------------------------------------------------------
    Mutation(
        name="an empty body does not clear the topic",
        file=_NODE,
        before="        if kept.payload:\n",
        after="        if kept.record:\n",
    ),
    Mutation(
        name="a retained will has no user",
        file=_NODE,
        before='source = self.wills.owner_of(kept.publisher or "") if client is None else client.owner',
        after="source = None if client is None else client.owner",
    ),
    Mutation(
        name="the row of a user stays when one without a user replaces the message",
        file=_NODE,
        before="            if source is not None or had_source:\n",
        after="            if source is not None:\n",
    ),
    Mutation(
        name="the user of the message before stays",
        file=_RETAINED,
        before="            self.sources.pop(message.subject, None)\n",
        after="            pass\n",
    ),
    # -- wills -------------------------------------------------------------------------------------------------------
    Mutation(
        name="the will of a client that came back is due after a restart",
        file=_WILLS,
        before="left.gone_at, left.due_at = None, None",
        after="left.due_at = None",
    ),
    Mutation(
        name="a will waits longer than its session lives",
        file=_WILLS,
        before="return min(self.will.delay_us, self.expiry_us)",
        after="return self.will.delay_us",
    ),
    Mutation(
        name="the publication of an older will ends the newer one",
        file=_WILLS,
        before="if left is not None and left.seq == will_seq:",
        after="if left is not None:",
    ),
    Mutation(
        name="a client that returns without a user takes the user of its will",
        file=_WILLS,
        before="left.owner = fact.owner or left.owner",
        after="left.owner = fact.owner",
    ),
    Mutation(
        name="whose connection ended with the broker is not restored",
        file=_WILLS,
        before="            self._wait(left, gone_at, is_excused=is_excused)\n",
        after="            self._wait(left, gone_at, is_excused=False)\n",
    ),
    Mutation(
        name="a restart delays every will by its whole delay",
        file=_WILLS,
        before="now + min(delay_us, grace_us)",
        after="now + delay_us",
    ),
    # -- decisions and what is held ----------------------------------------------------------------------------------
    Mutation(
        name="a decision is kept although nothing is held",
        file=_DECISIONS,
        before="if isinstance(fact, Decided) and self._is_held(fact.notification.seq):",
        after="if isinstance(fact, Decided):",
    ),
    Mutation(
        name="what policies know already is taken in again",
        file=_DECISIONS,
        before="        if fact.seq <= self.seq:\n            return\n        if isinstance(fact, SessionChanged):",
        after="        if fact.seq < self.seq:\n            return\n        if isinstance(fact, SessionChanged):",
    ),
    Mutation(
        name="the row of a decision outlives its receipt",
        file=_DECISIONS,
        before='            self._touched.add(("decision", seq, device))\n        if not found:',
        after="            pass\n        if not found:",
    ),
    Mutation(
        name="decisions outlive the session of their device",
        file=_DECISIONS,
        before="            self.on_receipt(device, kept)\n",
        after="            pass\n",
    ),
    Mutation(
        name="decisions outlive what they are about",
        file=_HELD,
        before="            self._policies.forget(seq)\n",
        after="            pass\n",
    ),
    Mutation(
        name="the row of a notification outlives the last who waited for it",
        file=_HELD,
        before="            self._policies.forget(seq)\n        super().forgotten(seq, copy)\n",
        after="            self._policies.forget(seq)\n",
    ),
    # -- the frame of the hold ---------------------------------------------------------------------------------------
    Mutation(
        name="the receipt of a retained message is taken for that of a copy",
        file=_NODE,
        before="        if fact.via == RETAINED:",
        after="        if fact.via == RETAINED and fact.outcome is None:",
    ),
    Mutation(
        name="a copy in flight is restored with the QoS of its publication",
        file=_ROWS,
        before="qos.get(device, state.copies[seq].qos)",
        after="state.copies[seq].qos",
    ),
    Mutation(
        name="who has received a copy is not restored",
        file=_ROWS,
        before="            copy.received = set(received)\n",
        after="            copy.received = set()\n",
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Try the mutations that are named, or all; return the exit status."""
    parser = argparse.ArgumentParser(description="Try thirty errors in the node's code against the naive twins.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to try; else all")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--list", action="store_true", help="print the names and try nothing")
    parser.add_argument("--check", action="store_true", help="only see that each text to replace is there, once")
    options = parser.parse_args(arguments)
    chosen = [each for each in MUTATIONS if not options.names or each.name in options.names]
    if unknown := set(options.names) - {each.name for each in MUTATIONS}:
        parser.error(f"there is no mutation {', '.join(sorted(unknown))}; --list prints them all")
    if options.list:
        print("\n".join(each.name for each in chosen))
        return 0
    try:
        if options.check:
            for each in chosen:
                each.mutated(_ROOT)
            return 0
        found = _try_all(chosen, is_quiet=options.json)
    except BrokenMutationError as error:
        print(error, file=sys.stderr)
        return 2
    survived = [name for name, is_killed in found.items() if not is_killed]
    if options.json:
        print(json.dumps({"killed": len(found) - len(survived), "survived": survived}))
    else:
        print(f"{len(found) - len(survived)} killed, {len(survived)} survived")
    return 1 if survived else 0


def _try_all(mutations: Iterable[Mutation], *, is_quiet: bool) -> dict[str, bool]:
    """Return whether each mutation is killed, by name."""
    found: dict[str, bool] = {}
    sound: set[tuple[str, ...]] = set()
    with tempfile.TemporaryDirectory(prefix="whimbrel-mutations-") as folder:
        root = Path(folder)
        _copy(root)
        for number, mutation in enumerate(mutations, start=1):
            if mutation.tests not in sound:
                if (code := _run(root, mutation.tests)) != _PASSED:
                    raise BrokenMutationError(
                        f"{' '.join(mutation.tests)} without a mutation: pytest ended with {code}"
                    )
                sound.add(mutation.tests)
            found[mutation.name] = _is_killed(root, mutation, number)
            if not is_quiet:
                print(f"{'killed' if found[mutation.name] else 'SURVIVED':8}  {mutation.name}", flush=True)
    return found


def _copy(root: Path) -> None:
    for name in _COPIED:
        source = _ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / name)


def _is_killed(root: Path, mutation: Mutation, number: int) -> bool:
    path = root / mutation.file
    sound = path.read_bytes()
    try:
        mutation.apply_to(root)
        _be_new(path, number)
        code = _run(root, mutation.tests)
    finally:
        path.write_bytes(sound)
        _be_new(path, -number)
    if code not in {_PASSED, _FAILED}:
        raise BrokenMutationError(f"{mutation.name}: pytest ended with {code}")
    return code == _FAILED


def _be_new(path: Path, number: int) -> None:
    """Give a file a time of its own: Python compares whole seconds and sizes to know its compiled files."""
    at = time.time() + 10 * number
    os.utime(path, (at, at))


def _run(root: Path, tests: tuple[str, ...]) -> int:
    """Run tests of the tree below *root* until the first failure; return pytest's exit code."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    try:
        ended = subprocess.run(  # noqa: S603 # fixed words
            command, cwd=root, env=environment, capture_output=True, check=False, timeout=_MAX_S
        )
    except subprocess.TimeoutExpired:
        return _FAILED
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
