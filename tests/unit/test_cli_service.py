"""Commands for those who run a broker: keys that fit, and a doctor who says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from whimbrel.broker.settings.config import Config
from whimbrel.cli.main import app
from whimbrel.cli.service.doctor import findings
from whimbrel.model.keys import KeyHash, KeyHashes, Scheme


def test_a_key_is_private_in_its_file_and_public_on_the_screen(tmp_path: Path) -> None:
    """The two fit, only the owner reads the file, and an older key is not overwritten."""
    file = tmp_path / "doctor.key"
    done = CliRunner().invoke(app, ["key", str(file)])
    assert done.exit_code == 0
    scheme, _, private = file.read_text(encoding="utf-8").strip().partition(":private:")
    assert KeyHash.parse(done.stdout.strip()) in KeyHashes.of_private(Scheme(scheme), private.encode())
    assert file.stat().st_mode & 0o077 == 0
    assert private not in done.stdout
    before = file.read_bytes()
    assert CliRunner().invoke(app, ["key", str(file)]).exit_code != 0
    assert file.read_bytes() == before


def test_a_doctor_finds_what_would_go_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that is not there, a broker that anybody may use, and a matcher that must be compiled first."""
    monkeypatch.setattr("whimbrel.match.first_use.is_compiled", lambda: False)
    config = Config().with_overrides({
        "node.data": str(tmp_path / "new"), "listen.host": "0.0.0.0", "listen.port": 0,  # noqa: S104 # never listened on
        "listen.tls_port": 0, "tls.certificate": str(tmp_path / "srv.crt"), "tls.key": str(tmp_path / "srv.key"),
    })  # fmt: skip
    found = {each.name: each for each in findings(config)}
    assert found["data"].is_well
    assert {name for name, each in found.items() if not each.is_well} >= {"tls", "users", "matcher"}
    assert found["tls"].told.endswith("srv.crt: No such file or directory")
    assert "whimbrel warm-up" in found["matcher"].told
    assert not (tmp_path / "new").exists()
