"""Hooks of mkdocs (``mkdocs.yml``): they make the site from docs/ as it is, without a second list of pages.

Rule: the navigation is docs/README.md: its headings are the sections, its list items the pages. A page that it does not
list stops the build.
Rule: a link to a file outside docs/ (a result, an example) gets a copy of the file in the site.
Rule: ``--strict`` makes every link and every anchor that leads nowhere an error.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
COPIES = "repository"
"""The folder of the site with files from outside docs/."""
_LINK = re.compile(r"\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_HEADING = re.compile(r"## (?P<title>[^:\n]+).*")
_ITEM = re.compile(r"- \[(?P<title>[^\]]+)\]\((?P<page>[^)#]+\.md)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the navigation from the list of pages in docs/README.md."""
    nav: list[dict[str, Any]] = [{"Home": "README.md"}]
    pages: list[dict[str, str]] = []
    for line in (ROOT / "docs" / "README.md").read_text(encoding="utf-8").splitlines():
        if heading := _HEADING.fullmatch(line):
            pages = []
            nav.append({heading["title"]: pages})
        elif item := _ITEM.match(line):
            pages.append({item["title"]: item["page"]})
    papers = sorted(path.name for path in (ROOT / "docs" / "papers").glob("*.md"))
    nav.append({"The five papers": [f"papers/{name}" for name in papers]})
    nav[-2]["Explanation"] = [each for each in pages if "papers/README.md" not in each.values()]
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Copy the files outside docs/ that its pages link to, and stop at a page that is in no list."""
    listed = set(_pages(config.nav))
    unlisted = [each.src_uri for each in files.documentation_pages() if each.src_uri not in listed]
    if unlisted:
        raise PluginError(f"docs/README.md lists all pages but {', '.join(unlisted)}")
    for page in list(files.documentation_pages()):
        for link in _LINK.finditer(page.content_string):
            outside = _outside(page.src_uri, link["target"])
            if outside is not None and files.get_file_from_path(f"{COPIES}/{outside}") is None:
                _copy(outside, files, config)
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:  # noqa: ANN401 # mkdocs passes more
    """Let the links that lead out of docs/ lead to the copies."""
    if page.file.src_uri.startswith(f"{COPIES}/"):
        return _LINK.sub(lambda link: "]" + f"({link['target']})" if "://" in link["target"] else "]", markdown)

    def inside(link: re.Match[str]) -> str:
        outside = _outside(page.file.src_uri, link["target"])
        if outside is None:
            return link[0]
        target = posixpath.relpath(f"{COPIES}/{outside}", posixpath.dirname(page.file.src_uri) or ".")
        return f"]({target}{link['anchor'] or ''})"

    return _LINK.sub(inside, markdown)


def _pages(nav: Any) -> list[str]:  # noqa: ANN401 # a tree of lists, mappings and texts
    if isinstance(nav, str):
        return [nav]
    return [page for each in (nav.values() if isinstance(nav, dict) else nav) for page in _pages(each)]


def _outside(page: str, target: str) -> str | None:
    """Return the path in the repository of a link's target that is outside docs/, or None."""
    if "://" in target or target.startswith(("#", "mailto:")):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.startswith("docs/") or path == "docs" else path


def _copy(path: str, files: Files, config: MkDocsConfig) -> None:
    if path.startswith("..") or not (ROOT / path).is_file():
        raise PluginError(f"a page of docs/ links to {path}, which is no file of the repository")
    copied = File.generated(config, f"{COPIES}/{path}", abs_src_path=str(ROOT / path))
    files.append(copied)
