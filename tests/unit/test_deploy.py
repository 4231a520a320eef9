"""What is in deploy/: files that cannot all be tried here are held against what they speak of."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.unit.test_metrics import METRICS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
_METRIC = re.compile(r"whimbrel_([a-z_]+)")


def test_every_metric_of_the_dashboard_exists() -> None:
    """A panel without data looks like a quiet broker."""
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    asked = {name for panel in board["panels"] for each in panel["targets"] for name in _METRIC.findall(each["expr"])}
    assert asked - METRICS == set()
    assert len(asked) > 15


def test_the_manifests_are_yaml_and_ask_for_one_broker() -> None:
    """They were tried on no cluster, and say so; two brokers on one log would be worse than none."""
    yaml = pytest.importorskip("yaml")
    text = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")
    service, broker = yaml.safe_load_all(text)
    assert "UNTRIED" in text
    assert broker["spec"]["replicas"] == 1
    ports = {each["containerPort"] for each in broker["spec"]["template"]["spec"]["containers"][0]["ports"]}
    assert {each["port"] for each in service["spec"]["ports"]} == ports


def test_the_unit_is_one_for_systemd(tmp_path: Path) -> None:
    """But for the program, which is not installed where it looks."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "whimbrel.service"
    text = (DEPLOY / "whimbrel.service").read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/whimbrel/bin/whimbrel", shutil.which("true") or "/bin/true"), encoding="utf-8")
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
