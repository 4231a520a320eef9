"""``whimbrel lab icu-overhead`` from end to end, in its quick form: brokers, doctors and a publisher over sockets."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from whimbrel.cli.main import main


def test_the_quick_overhead_counts_every_copy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What depends on the machine is not asserted: how long it took. Copies, compressions and accounts are counts."""
    monkeypatch.setattr(sys, "argv", ["whimbrel", "lab", "icu-overhead", "--quick", "--out", str(tmp_path), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    claims = json.loads(capsys.readouterr().out)["claims"]
    for claim in (
        "without its limit one endless policy stops the broker for everybody",
        "doctors in twelve states cost at most 12 compressions a notification",
        "the account of every notification closes after kill -9",
        "every malicious policy is slowed or suspended, and its owner told",
        "the log says why",
    ):
        assert claims[claim], claim
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("icu-overhead-points/*.json")]
    (account,) = (row for row in rows if "account" in row)
    assert account["unaccounted"] == 0
    assert sum(account["account"].values()) == account["due"] >= 4 * 10
    (blind,) = (row for row in rows if row["policy"] == "blind" and row["per_minute"])
    assert blind["delivered"] == blind["published"] * blind["doctors"] == 40
    (full,) = (row for row in rows if row["policy"] == "stateful" and row.get("is_limited") and not row["malicious"]
               and row["per_minute"])  # fmt: skip
    assert full["delivered"] == 40  # no battery of the mixture's first ten doctors is nearly empty
    assert full["outcomes"] == {"delivered": 40}
    (unlimited,) = (row for row in rows if not row.get("is_limited", True))
    assert unlimited["delivered_honest"] == 0
