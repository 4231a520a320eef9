"""``whimbrel lab icu-bandwidth`` from end to end, in its quick form: real sockets, a slow link, nine seconds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from whimbrel.cli.main import main


def test_the_quick_bandwidth_is_a_table_a_plot_and_points(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What depends on the machine is not asserted: how much of it was in time."""
    command = ["whimbrel", "lab", "icu-bandwidth", "--quick", "--link", "relay", "--out", str(tmp_path), "--json"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    assert found["points"] == 3
    assert "NetworkConnection falls, and compression follows" in found["claims"]
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("icu-bandwidth-points/*.json")]
    assert any(row["received"] for row in rows)  # on a busy machine nothing may come in time over one of the links
    for row in rows:
        assert row["published"] == 18  # some of it late, where the machine is busy
        assert row["in_time"] <= row["received"] <= row["published"]
        assert len(row["series"]) >= 4
    assert (tmp_path / "icu-bandwidth.png").read_bytes().startswith(b"\x89PNG")
