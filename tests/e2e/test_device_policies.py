"""Policies as users meet them: the command, our client, and the how-to's plain paho, at one broker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from typer.testing import CliRunner

from whimbrel.cli.main import app
from whimbrel.client import Client, PublishRefusedError, Reporting, SessionRefusedError
from whimbrel.client.device.reporting import system_battery

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "put-a-policy-from-plain-mqtt.md"
TUTORIAL = HOW_TO.parents[1] / "tutorial" / "one-notification-three-phones.md"
BLOCKS = re.findall(r"```(?:python|text)\n(.*?)```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield one broker for all."""
    with BrokerProcess(tmp_path_factory.mktemp("policies")) as process:
        yield process


@pytest.mark.parametrize(("code", "printed"), [BLOCKS[0:2], BLOCKS[2:4]], ids=["5", "3.1.1"])
def test_the_how_to_does_what_it_says(broker: BrokerProcess, code: str, printed: str) -> None:
    """Without our client: what a reader copies has to work."""
    out = StringIO()
    with redirect_stdout(out):
        exec(compile(code, str(HOW_TO), "exec"), {"HOST": "127.0.0.1", "PORT": broker.port})  # noqa: S102 # our own page
    assert out.getvalue() == printed


def test_the_tutorial_s_three_phones_get_what_it_says(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One notification, three phones: at a real broker, by our client."""
    text = TUTORIAL.read_text(encoding="utf-8")
    for name, content in re.findall(r"```\w+ (beat\.\w+)\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    ((code, printed),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    out = StringIO()
    with redirect_stdout(out):
        exec(compile(code, str(TUTORIAL), "exec"), {"HOST": "127.0.0.1", "PORT": broker.port})  # noqa: S102 # our own page
    assert out.getvalue() == printed


def test_policies_are_put_listed_shown_and_removed(broker: BrokerProcess, tmp_path: Path) -> None:
    """On the command line."""
    text = "return m; // all\n"
    (tmp_path / "all.policy").write_text(text)
    where = ["--port", str(broker.port)]

    def told(*words: str) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["policy", *words, *where])
        return found.exit_code, found.output

    assert told("put", "all", str(tmp_path / "all.policy")) == (0, "put all\n")
    assert told("show", "all") == (0, text)
    code, listed = told("list")
    assert code == 0
    assert re.search(r"^all: version \d+, without owner, 0 devices$", listed, re.MULTILINE)
    assert told("remove", "all") == (0, "removed all\n")
    assert told("show", "all")[0] == 1


def test_a_client_chooses_a_policy_and_reports_by_itself(broker: BrokerProcess) -> None:
    """The report comes before anything is asked for, so the first notification is decided by it."""

    async def phone() -> bytes:
        where = {"host": "127.0.0.1", "port": broker.port}
        async with Client(**where, client_id="writer") as writer:  # type: ignore[arg-type]  # by name
            with pytest.raises(PublishRefusedError, match="line 1, column 9"):
                await writer.policies.put("mine", "return m")
            await writer.policies.put(
                "mine", "if (m.id in device.mine) { m.by = device.Battery; return m; } return NULL;"
            )
            with pytest.raises(SessionRefusedError):
                await writer.policies.choose("none")
            reports = Reporting(battery=lambda: 0.25, members={"mine": [7]})
            async with Client(**where, client_id="reporter", policy="mine", reports=reports) as client:  # type: ignore[arg-type]
                await client.subscribe("own/#")
                await client.report(battery=0.25)  # behind the first, which was sent by itself
                for number in (6, 7):
                    await writer.publish("own/t", {"id": number}, qos=1)
                assert "mine" in [each.name for each in await client.policies.list()]
                message = await anext(client.messages())
                return message.payload

    assert asyncio.run(asyncio.wait_for(phone(), 30)) == b'{"id":7,"by":0.25}'


def test_the_battery_is_that_of_the_system(tmp_path: Path) -> None:
    """As Linux tells it; elsewhere it is not known."""
    assert system_battery(tmp_path / "none") is None
    for name, kind, capacity in (("AC", "Mains", None), ("BAT0", "Battery", "40"), ("BAT1", "Battery", "61")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "type").write_text(f"{kind}\n")
        if capacity is not None:
            (tmp_path / name / "capacity").write_text(f"{capacity}\n")
    assert system_battery(tmp_path) == 0.5
