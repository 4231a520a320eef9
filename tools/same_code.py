"""Show that a commit changed only prose: the code of every module is the same before and after, docstrings aside.

    python tools/same_code.py [BEFORE [AFTER]]     # git revisions; HEAD~1 and HEAD unless given

Exit status: 0 if only docstrings, comments and Markdown changed, 1 if code did.
"""

from __future__ import annotations

import ast
import subprocess
import sys


def git(*words: str) -> str:
    """Return the output of a git command."""
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout  # noqa: S603, S607 # ours


def code(source: str) -> str:
    """Return the syntax tree of *source* as text, without strings that stand alone as statements."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            code = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
            setattr(node, "body", code)  # noqa: B010  # not every node has one
    return ast.dump(tree)


def main() -> int:
    """Print each file whose code differs; return 1 if there is one."""
    before, after = ([*sys.argv[1:], *["HEAD~1", "HEAD"][len(sys.argv) - 1 :]])[:2]
    names = git("diff", "--name-only", "--no-renames", before, after).split()
    changed = [name for name in names if name.endswith(".py")]
    different = [name for name in names if not name.endswith((".py", ".md"))]
    for path in changed:
        try:
            same = code(git("show", f"{before}:{path}")) == code(git("show", f"{after}:{path}"))
        except subprocess.CalledProcessError:
            same = False  # added or removed
        different += [] if same else [path]
    print("\n".join(f"{path}: the code differs" for path in different) or f"{len(changed)} files: only prose changed")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
