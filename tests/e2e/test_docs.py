"""The documents are true: every command, session, example, link and generated page in them is tried.

Conventions of the pages: in a ``console`` block a line ``$ whimbrel …`` is run and what follows is its output, a line
``...`` stands for any lines, and ``$ echo $?`` shows the exit code; a block that opens with a file's name (as in
``jsonl ward.jsonl``) is that file, in the folder where the later commands of the page run. Durations (``9.8 s``) and
rates (``410 a second``) are shown as they were once and may be any. Pages whose commands need Spark are tried
in a process of their own, one after the other: first its commands, then its Python sessions, in the same folder.

A line ``$ whimbrel serve … &`` starts a broker in a process of its own, and ``$ whimbrel subscribe … &`` or
``$ whimbrel session join … &`` a listener; ``$ wait %2`` shows what the second of them printed, ``$ kill %1`` ends the
first, and the end of the page ends all. Pages use MQTT's usual port, and the broker that tries them any that is free:
``--port`` is added to what they say. Python sessions that use ``whimbrel.client`` have a broker of their own there.
"""

from __future__ import annotations

import doctest
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Self

import pytest
from tests.e2e.broker_process import BrokerProcess

from whimbrel.cli.main import main
from whimbrel.client import Client

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("[A-Z]*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PAPERS = sorted((ROOT / "docs" / "papers").glob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

_FENCE = re.compile(r"^```(?P<language>[a-z]*)[ ]?(?P<title>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.*)$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_SPARK = re.compile(r"^\$ whimbrel pipeline (?:generate|run|replay) ", re.MULTILINE)
_TRIED = re.compile(r"^\$ (?:whimbrel|openssl|mosquitto_(?:pub|sub)|python) ", re.MULTILINE)
_PROGRESS = re.compile(r"^\d+ s: .*\n", re.MULTILINE)
_VARYING = re.compile(r" +[\d,]+\.\d s\b| [\d,]+ a second\b")
_DOCTEST_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{_name(self.page)}, line {self.line}"


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _blocks(page: Path) -> Iterator[Block]:
    text = _read(page)
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page=page, line=line, language=found["language"], title=found["title"], text=found["text"])


def _pages_with(language: str, word: str) -> list[Path]:
    return [page for page in PAGES if any(b.language == language and word in b.text for b in _blocks(page))]


def _without_spark(pages: list[Path]) -> list[Path]:
    return [page for page in pages if page not in SPARK_PAGES]


SPARK_PAGES = [page for page in PAGES if any(b.language == "console" and _SPARK.search(b.text) for b in _blocks(page))]


# -- commands --------------------------------------------------------------------------------------------------------

# A reader types the next line when the listener listens; a test has to be told.
_LISTENER = """
import sys
from whimbrel.cli.main import main
from whimbrel.client import Client

subscribe = Client.subscribe

async def told(*arguments, **options):
    answer = await subscribe(*arguments, **options)
    print("subscribed", file=sys.stderr, flush=True)
    return answer

Client.subscribe = told
main()
"""
_LONGEST_S = 60


class Jobs:
    """What a page started in the background, as the reader's shell numbers it: brokers, and listeners to one topic."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._jobs: list[BrokerProcess | subprocess.Popen[str] | None] = []
        self._port: int | None = None
        self._tls_port: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for job in self._jobs:
            if job is not None:
                job.kill()
            if isinstance(job, subprocess.Popen):
                job.communicate()

    def directed(self, arguments: list[str]) -> list[str]:
        """Return *arguments* with the port of the page's broker; a listener that hears nothing ends all the same."""
        if arguments[-1] == "2>&1":
            arguments = arguments[:-1]
        if self._port is None or arguments[0] not in {"publish", "subscribe", "session", "clients"}:
            return arguments
        listens = arguments[0] == "subscribe" or arguments[:2] == ["session", "join"]
        bound = ["--timeout", str(_LONGEST_S)] if listens else []
        port = self._tls_port if "--tls-ca" in arguments else self._port
        return [*arguments, "--port", str(port), *bound]

    def perform(self, words: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
        """Start, await or end a job; return what it printed so far."""
        if words[-1] == "&":
            with monkeypatch.context() as patch:
                patch.chdir(self._directory)
                return self._serve(words[2:-1]) if words[1] == "serve" else self._listen(words[1:-1])
        number = int(words[1].removeprefix("%")) - 1
        job, self._jobs[number] = self._jobs[number], None
        while self._jobs and self._jobs[-1] is None:  # a shell gives the number of a job that has ended to the next
            self._jobs.pop()
        if isinstance(job, BrokerProcess):
            assert words[0] == "kill", "a broker does not end by itself"
            job.stop()
            return ""
        assert job is not None, f"{words[1]} has ended"
        # Not communicate(): with a time limit it passes by what came with the first line, and is buffered already.
        limit = threading.Timer(_LONGEST_S, job.kill)
        limit.start()
        try:
            assert job.stdout is not None
            with job.stdout as stream:
                printed = stream.read()
            job.wait()
        finally:
            limit.cancel()
        return printed

    def mosquitto(self, words: list[str], expected: str) -> str:
        """Run a client of Mosquitto; where there is none, or no broker, what is expected stands."""
        if self._port is None or shutil.which(words[0]) is None:
            return expected
        command = [*words, "-p", str(self._port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
        return done.stdout + done.stderr

    def _serve(self, options: list[str]) -> str:
        if "--tls-port" in options:  # the page's own may be taken
            options[options.index("--tls-port") + 1] = "0"
        broker = BrokerProcess(self._directory / ".broker", *options).start()
        self._jobs.append(broker)
        self._port, self._tls_port = broker.port, broker.ports.get("mqtts")
        return "".join(broker.lines)

    def _listen(self, arguments: list[str]) -> str:
        command = [sys.executable, "-c", _LISTENER, *self.directed(arguments)]
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
        self._jobs.append(job)
        assert job.stdout is not None
        first = job.stdout.readline()
        assert first == "subscribed\n", first + job.stdout.read()
        return ""


def _whimbrel(arguments: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """Run the command as the script would, in this process; return what it printed and its exit code."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="", write_through=True)
    with monkeypatch.context() as patch, redirect_stdout(stream), redirect_stderr(stream):
        patch.chdir(directory)
        for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        patch.setenv("COLUMNS", "100")
        patch.setenv("NO_COLOR", "1")
        patch.setattr(sys, "argv", ["whimbrel", *arguments])
        patch.setitem(sys.modules, "__main__", ModuleType("__main__"))  # from it the usage line takes its first word
        with pytest.raises(SystemExit) as ended:
            main()
    stream.seek(0)
    code = ended.value.code
    return stream.read(), code if isinstance(code, int) else 0


def _steps(block: Block) -> Iterator[tuple[str, str]]:
    """Yield each command of a console block with the output written below it."""
    for step in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, output = step.partition("\n")
        yield command, output


def _is_like(found: str, expected: str) -> bool:
    """Tell whether *found* is *expected*, where a line ``...`` stands for any lines and times do not count.

    Nor do spaces at the end of a line: tables are padded, and what nobody sees nobody copies. Nor do lines of progress,
    which are printed where there is no terminal: how many there are depends on the machine.
    """
    found = _PROGRESS.sub("", found)
    found, expected = (_VARYING.sub(" …", re.sub(r"[ ]+$", "", text, flags=re.MULTILINE)) for text in (found, expected))
    pattern = "".join("(?:.*\n)*?" if line == "...\n" else re.escape(line) for line in expected.splitlines(True))
    return re.fullmatch(pattern, found) is not None


def _try_commands(page: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = 0
    with Jobs(directory) as jobs:
        for block in _blocks(page):
            if block.title:
                (directory / block.title).write_text(block.text, encoding="utf-8")
            if block.language != "console" or not _TRIED.search(block.text):
                continue
            for command, expected in _steps(block):
                words = shlex.split(command)
                if words[0] in {"wait", "kill"} or words[-1] == "&":
                    found = jobs.perform(words, monkeypatch)
                elif words[0] == "whimbrel":
                    found, code = _whimbrel(jobs.directed(words[1:]), directory, monkeypatch)
                elif words[0] in {"mosquitto_pub", "mosquitto_sub"}:
                    found = jobs.mosquitto(words, expected)
                elif words[0] == "openssl":
                    subprocess.run(words, cwd=directory, capture_output=True, check=True)
                    found = ""
                elif words[0] == "python":
                    found = expected  # a client of others, at the usual port: test_first_hour runs it
                else:
                    assert command == "echo $?", f"{block}: this is not run here: {command}"
                    found = f"{code}\n"
                assert _is_like(found, expected), f"{block}: $ {command}\nprints\n{found}\nnot\n{expected}"


@pytest.mark.parametrize("page", _without_spark(_pages_with("console", "$ whimbrel ")), ids=_name)
def test_every_command_prints_what_its_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who types what is written must see what is written."""
    _try_commands(page, tmp_path, monkeypatch)


def test_only_what_talks_to_a_broker_is_told_where_the_page_has_one(tmp_path: Path) -> None:
    """A page without a broker must be tried as it stands, and one with a broker must not meet another."""
    with Jobs(tmp_path) as jobs:
        assert jobs.directed(["publish", "a", "b"]) == ["publish", "a", "b"]
        jobs._port = 4_242
        assert jobs.directed(["publish", "a", "b"]) == ["publish", "a", "b", "--port", "4242"]
        assert jobs.directed(["session", "show", "a"]) == ["session", "show", "a", "--port", "4242"]
        assert jobs.directed(["log", "show", "a"]) == ["log", "show", "a"]


def test_the_module_runs_as_the_command_does(tmp_path: Path) -> None:
    """Pages are tried in this process; one real process shows that nothing is lost by it."""
    command = [sys.executable, "-m", "whimbrel", "filter", "test", "a = 5", "-a", "{}"]
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error 2102 at line 1, column 3: = is not an operator; to compare, write ==\n  a = 5\n    ^\n"


def test_an_ellipsis_stands_for_lines_and_for_nothing_else() -> None:
    """The comparison itself must be able to fail."""
    assert _is_like("a\nb\nc\n", "a\n...\nc\n")
    assert not _is_like("a\nb\nd\n", "a\n...\nc\n")
    assert not _is_like("a\nb\n", "a\n")
    assert _is_like("a  12 rows     13.2 s  \n", "a  12 rows  3.0 s\n")
    assert not _is_like("a  12 rows  3.0 s\n", "a  13 rows  3.0 s\n")


# -- Python ----------------------------------------------------------------------------------------------------------


def _try_sessions(page: Path) -> None:
    text = _read(page)
    kept = ["\n"] * (text.count("\n") + 1)
    for block in _blocks(page):
        if block.language == "python" and ">>> " in block.text:
            lines = block.text.splitlines(True)
            kept[block.line : block.line + len(lines)] = lines
    session = doctest.DocTestParser().get_doctest("".join(kept), {}, _name(page), str(page), 0)
    report = io.StringIO()
    doctest.DocTestRunner(optionflags=_DOCTEST_FLAGS).run(session, out=report.write)
    assert not report.getvalue(), report.getvalue()


@pytest.mark.parametrize("page", _without_spark(_pages_with("python", ">>> ")), ids=_name)
def test_every_session_answers_what_its_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sessions of a page are one, as a reader would type them."""
    if page not in _pages_with("python", "from whimbrel.client import"):
        _try_sessions(page)
        return
    with BrokerProcess(tmp_path / ".broker") as broker:
        monkeypatch.setattr(Client.__init__, "__defaults__", ("127.0.0.1", broker.port))
        _try_sessions(page)


def test_the_readme_shows_python_that_is_tried() -> None:
    """The first example is the one most readers type."""
    assert ROOT / "README.md" in _pages_with("python", ">>> ")


@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_every_example_prints_what_stands_beside_it(example: Path, tmp_path: Path) -> None:
    """An example that no longer runs teaches the wrong thing."""
    command = [sys.executable, str(example)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == _read(example.with_suffix(".out"))


# -- Spark -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_page_with_spark_shows_what_is_seen(tmp_path: Path) -> None:
    """Java is started in the pages' folder, as a reader starts it: Spark never follows a later change of folder."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}  # where `tests` is found, as pytest does
    command = [sys.executable, __file__, *map(str, SPARK_PAGES)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [_name(page) for page in SPARK_PAGES]


def _try_with_spark(pages: Iterable[Path]) -> None:
    """Try each page in this process and folder, which is empty for it; all share one Java, and outputs do not tell."""
    from whimbrel.pipeline.spark.spark_session import local_session

    spark = local_session(master="local[2]", memory="1g", partitions=2)
    folder = Path.cwd()
    for page in pages:
        with pytest.MonkeyPatch.context() as monkeypatch:
            _try_commands(page, folder, monkeypatch)
        _try_sessions(page)
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        print(_name(page))  # noqa: T201 # for whoever waits
    spark.stop()


# -- generated pages -------------------------------------------------------------------------------------------------


def _make_docs(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "tools" / "make_docs.py"), "--check"]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False)


def test_generated_pages_are_fresh() -> None:
    """What the code knows and what the pages say is the same."""
    done = _make_docs(ROOT)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_a_stale_page_is_named(tmp_path: Path) -> None:
    """A check that cannot fail checks nothing."""
    for folder in ("docs", "tools", "bench/results"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "README.md", tmp_path)
    page = tmp_path / "docs" / "reference" / "language.md"
    page.write_text(_read(page).replace("| 2113 |", "| 2114 |"), encoding="utf-8")
    done = _make_docs(tmp_path)
    assert done.returncode == 1
    assert "docs/reference/language.md: stale; run make docs" in done.stdout.splitlines()


def _commands(words: tuple[str, ...], directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Yield every command and what its ``--help`` says, found by asking each group for its members."""
    text, _ = _whimbrel([*words, "--help"], directory, monkeypatch)
    yield " ".join(("whimbrel", *words)), text
    _, _, members = text.partition("\nCommands:\n")
    for member in re.findall(r"^  (\S+)", members, flags=re.MULTILINE):
        yield from _commands((*words, member), directory, monkeypatch)


def test_every_command_is_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command without a page, or without a sentence of its own, does not exist for a newcomer."""
    reference = _read(ROOT / "docs" / "reference" / "cli.md")
    found = dict(_commands((), tmp_path, monkeypatch))
    assert {"whimbrel", "whimbrel demo", "whimbrel filter check"} <= found.keys()
    assert "...\n" not in found["whimbrel"].partition("Commands:")[2], "a line of `whimbrel --help` is cut off"
    for command, text in found.items():
        assert f"## {command}\n\n```text\n{text}```\n" in reference, command
        assert re.match(r"Usage: .*\n\n  [A-Z]", text), f"{command} has no help text"
        _try_examples(command, text)


def _try_examples(command: str, text: str) -> None:
    """Hold the examples of a command's help against its options; that they run is for other tests."""
    examples = re.findall(r"^  Example: ((?:.*\\\n)*.*)$", text, flags=re.MULTILINE)
    assert examples or "\nCommands:\n" in text, f"{command} --help has no example"
    options = set(re.findall(r"(?<!\w)--?[a-z][a-z-]*", text.partition("\nOptions:\n")[2]))
    for example in examples:
        assert max(map(len, example.splitlines())) <= 80
        inner = re.search(r"\$\((whimbrel .*)\)", example)
        words = shlex.split((example if inner is None else inner[1]).replace("\\\n", " "))
        assert words[: len(command.split())] == command.split(), example
        given = {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)}
        assert given <= options, f"{command} has no {given - options}: {example}"


# -- links and papers ------------------------------------------------------------------------------------------------


def _prose(page: Path) -> str:
    return _CODE.sub("", _FENCE.sub("", _read(page)))


def _anchors(page: Path) -> set[str]:
    titles = (re.sub(r"[^\w\- ]", "", found["title"].lower()) for found in _HEADING.finditer(_read(page)))
    return {title.replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    """A dead link is a promise broken."""
    for found in _LINK.finditer(_prose(page)):
        path, _, anchor = found["target"].partition("#")
        if "://" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{_name(page)}: {found['target']} does not exist"
        if anchor:
            assert anchor in _anchors(target), f"{_name(page)}: {found['target']} has no such heading"


@pytest.mark.parametrize("page", PAPERS, ids=_name)
def test_what_a_paper_page_calls_built_is_there(page: Path) -> None:
    """A row says built only where code and test exist; a test's name is never a guess."""
    for part in re.split(r"[|;\n]", _read(page)):
        named: list[str] = re.findall(r"`([\w./*-]+)`", part)
        certain = [name for name in named if name.startswith("tests/") or re.fullmatch(r"src/.*\.py", name)]
        if re.search(r"\*\*built\*\*", part):
            certain += [name for name in named if "/" in name]
        for name in certain:
            places = (ROOT, ROOT / "src" / "whimbrel")
            assert any(list(place.glob(name.rstrip("/"))) for place in places), f"{_name(page)}: {name} is not there"


if __name__ == "__main__":
    _try_with_spark(map(Path, sys.argv[1:]))
