"""Check the fragments in changes/, and join them into a section of CHANGELOG.md.

    python tools/changelog.py --check            # name the fragments that break a rule; exit status 1 if one does
    python tools/changelog.py                    # print the lines that the fragments make
    python tools/changelog.py --release 0.2.0    # write them into CHANGELOG.md, remove the fragments

A fragment is one file per change that users notice, changes/TOPIC.KIND.md, such as changes/retain-days.fixed.md. It
holds one plain sentence on one line that names the effect. KIND is breaking, security, added, changed or fixed.
changes/README.md has examples.

Rule: a release that has a date is never changed; the section of the next one is made if it does not exist.
Rule: nothing is written or removed while a fragment breaks a rule.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from plain_english import hits_of, markdown_texts

ROOT = Path(__file__).resolve().parents[1]
KINDS = {
    "breaking": "Breaking changes",
    "security": "Security",
    "added": "Added",
    "changed": "Changed",
    "fixed": "Fixed",
}
"""Kinds of a fragment and their headings, in the order of a section."""
MAX_WORDS = 35
"""Most words of a fragment, as of any sentence of ours."""
_NAME = re.compile(rf"(?P<topic>[a-z0-9]+(?:-[a-z0-9]+)*)\.(?P<kind>{'|'.join(KINDS)})\.md")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_CODE = re.compile(r"`[^`\n]*`")
_NOT_THE_END = re.compile(r"[.!?](?=\s)")
_OPEN = " – not released yet"


class ChangelogError(Exception):
    """The changelog cannot get the section of a release."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """One change that users notice."""

    topic: str
    kind: str
    sentence: str


def problems_of(folder: Path) -> Iterator[str]:
    """Yield the rules that files of *folder* break, as one sentence each with the file's name."""
    for path in _files(folder):
        found = _NAME.fullmatch(path.name)
        if found is None:
            yield f"{path.name}: the name is not TOPIC.KIND.md with a KIND of {', '.join(KINDS)}"
            continue
        for problem in _problems_of_text(path):
            yield f"{path.name}: {problem}"


def _problems_of_text(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8").removesuffix("\n")
    bare = _CODE.sub("CODE", text)
    if "\n" in text or not text.strip():
        yield "allowed is one line with one sentence"
        return
    if text.startswith(("-", "*", "#", " ")) or bare[0].islower():
        yield "a sentence begins with a capital letter or code, without a bullet"
    if not bare.endswith(".") or _NOT_THE_END.search(bare):
        yield "allowed is one sentence, which ends with a full stop"
    if len(bare.split()) > MAX_WORDS:
        yield f"found {len(bare.split())} words, allowed are {MAX_WORDS}"
    for hit in hits_of(path, list(markdown_texts(text))):
        if hit.rule != "long-sentence":
            yield f"{hit.rule}: {hit.text}"


def fragments_of(folder: Path) -> list[Fragment]:
    """Return the fragments of *folder*, by kind and then by topic."""
    order = list(KINDS)
    fragments = [
        Fragment(found["topic"], found["kind"], path.read_text(encoding="utf-8").strip())
        for path in _files(folder)
        if (found := _NAME.fullmatch(path.name))
    ]
    return sorted(fragments, key=lambda each: (order.index(each.kind), each.topic))


def _files(folder: Path) -> list[Path]:
    hidden = (".", "README.md")
    return sorted(path for path in folder.glob("*") if path.is_file() and not path.name.startswith(hidden))


def lines_of(fragments: Sequence[Fragment]) -> str:
    """Return the headings and bullets of *fragments*."""
    return "\n".join(
        "\n".join([f"### {title}", "", *(f"- {each.sentence}" for each in fragments if each.kind == kind), ""])
        for kind, title in KINDS.items()
        if any(each.kind == kind for each in fragments)
    )


def released(changelog: str, fragments: Sequence[Fragment], *, version: str, date: str) -> str:
    """Return *changelog* with *fragments* in the section of *version*, which gets *date* as its date."""
    if not _VERSION.fullmatch(version):
        raise ChangelogError(f"version: found {version!r}, allowed is three numbers, such as 0.2.0")
    head, *sections = re.split(r"^(?=## )", changelog, flags=re.MULTILINE)
    titles = [section.partition("\n")[0].removeprefix("## ") for section in sections]
    title = f"## {version} – {date}"
    open_section = f"{version}{_OPEN}"
    if any(each.split()[0] == version and each != open_section for each in titles):
        raise ChangelogError(f"{version} has been released; a release does not change")
    if open_section not in titles:
        return f"{head}{title}\n\n{lines_of(fragments)}\n{''.join(sections)}".rstrip("\n") + "\n"
    at = titles.index(open_section)
    body = sections[at].partition("\n")[2].rstrip("\n") + "\n"
    for kind, heading in KINDS.items():
        body = _with_bullets(body, heading, [f"- {each.sentence}" for each in fragments if each.kind == kind])
    sections[at] = f"{title}\n{body}\n" if at + 1 < len(sections) else f"{title}\n{body}"
    return head + "".join(sections)


def _with_bullets(body: str, title: str, bullets: Sequence[str]) -> str:
    """Return *body* of a section with *bullets* at the end of its heading *title*, which is made if it is missing."""
    if not bullets:
        return body
    added = "".join(f"{each}\n" for each in bullets)
    found = re.search(rf"^### {re.escape(title)}\n.*?(?=^### |\Z)", body, re.MULTILINE | re.DOTALL)
    if found is None:
        return f"{body}\n### {title}\n\n{added}"
    text = found[0].rstrip("\n") + "\n" + added
    rest = body[found.end() :]
    return body[: found.start()] + text + (f"\n{rest}" if rest else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, print or release the fragments; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only name the fragments that break a rule")
    parser.add_argument("--release", metavar="VERSION", help="write a section into CHANGELOG.md, remove the fragments")
    parser.add_argument(
        "--date", default=dt.datetime.now(dt.UTC).date().isoformat(), help="of the release (default: today)"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder with CHANGELOG.md and changes/")
    options = parser.parse_args(arguments)
    folder, path = options.root / "changes", options.root / "CHANGELOG.md"
    if problems := list(problems_of(folder)):
        print("\n".join(f"changes/{each}" for each in problems), file=sys.stderr)
        return 1
    fragments = fragments_of(folder)
    if options.check:
        print(f"{len(fragments)} fragments are well formed")
    elif options.release is None:
        print(lines_of(fragments), end="")
    else:
        try:
            text = released(path.read_text(encoding="utf-8"), fragments, version=options.release, date=options.date)
        except ChangelogError as error:
            print(error, file=sys.stderr)
            return 2
        path.write_text(text, encoding="utf-8")
        for each in fragments:
            (folder / f"{each.topic}.{each.kind}.md").unlink()
        print(f"CHANGELOG.md: {options.release} has {len(fragments)} more changes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
