"""Find English that a reader has to decode: in docstrings, comments, error texts, option help and Markdown.

    python tools/plain_english.py PATH... [--json] [--by DEPTH] [--only RULES] [--max N] [--baseline FILE [--update]]

Each rule was right on at least 16 of 20 random hits (tell-whether only as a rule of the house). A hit asks for a
rewrite, by a person who reads the code. With --baseline the exit status is 1 if a package has more hits of a rule than
FILE allows; --update lowers FILE, and refuses to raise a count.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BE = r"\b(?:is|are|was|were|be|been|being)"
UNIT = (
    "file|table|node|device|batch|turn|session|group|client|page|column|row|line|piece|subject|core|event|publication|"
    "message|entry|fact|command|test|user|worker|task|connection|part|run|packet|step|filter|pattern|reaction|day"
)
# rule: (where it looks, pattern, what to write instead); "first" is the first sentence of a docstring.
RULES: dict[str, tuple[str, str, str]] = {
    "begins-what": ("first", r"^What (?!if\b)[^?]*$", "a noun phrase that names the thing"),
    "returns-what": (
        "first",
        (
            r"^(?:Return|Yield|Print|Show|Write|Note|Tell|Do|Drop|Keep|Take|Send|Remove|Add|Read) "
            r"(?:what|who|whom|whose|all that|those)\b"
        ),
        "'Return the <noun>'",
    ),
    "what-as-subject": (
        "any",
        (
            r"(?:^|; |Rule: )[Ww]hat (?:(?:is|are|was|were|has|have|comes?|came|goes|waits?|no|does"
            r"|may|cannot) |(?:it|they|an?|the|one) [^,.;:?]* (?:is|are|was|were|may|must|counts?|stays?"
            r"|goes|gets|waits?|takes?) )[^?]*$"
        ),
        "a subject with a noun",
    ),
    "tell-whether": ("first", r"^(?:Tell|Say) (?:whether|that)\b", "'Return whether …'"),
    "let-have-be": ("first", r"^(?:Let|Have|Be)\b(?! \w+ know\b)", "the verb of the change: 'Register', 'Set', 'Add'"),
    "take-in": ("any", r"\b[Tt]ak(?:e|es|en|ing) in\b|^Takes? [^.;:,]{1,30} in[.;,]", "'Apply', 'Handle', 'Record'"),
    "fronted": (
        "first",
        (
            r"^(?:Of|(?:So|As) (?:how )?(?:many|much|long|far|few)|By how|(?:Up to|From|For|To|With|Under"
            r"|In|On|At) (?:so|how|which|what|whom|when))\b"
        ),
        "the noun first",
    ),
    "continued": ("first", r"^(?!pyspark|numba|pyarrow)[a-z]+[,;]? ", "a docstring that stands alone"),
    "keyed-by": ("first", r"^By [\w ]+[,:] ", "'Last seq per node'"),
    "who-without-noun": (
        "any",
        (
            r"(?:^|[.;:] |\b(?:for|of|to|by|from|than|but) )[Ww]ho (?:(?!and\b|are\b)[\w'-]+ )"
            r"{1,9}?(?:is|was|may|must|has|gets|goes|moves|does|waits|loses|needs?|can|will)\b[^?]*$"
            r"|\b[Ww]hom?ever\b"
        ),
        "the noun: client, device, caller, reader",
    ),
    "is-no": (
        "any",
        (
            rf"(?<!here )(?<!would ){BE} (?:no (?!longer|more|such|one\b|less|worse|better|doubt|need|use"
            r"|matter|room|reason|place|way|time|newer|older)[\w*`]+|none\b(?! (?:that|of|to)))"
        ),
        "'is not a …'",
    ),
    "split-clause": (
        "any",
        (
            rf"(?:{BE} (?!told|known|said|such|then|none|when|given|asked|assumed|noted|proven|believed"
            r"|so\b)(?:\w+(?:ed|ept|eld|ade|ent|eft|ost|inal)|open|there)|\b(?:waits|begins?|counts|stays?"
            r"|remains)) (?:that|who|whose)\b(?! (?:it|the|they|a)\b)"
        ),
        "the clause beside its noun",
    ),
    "asked-said": (
        "any",
        r"(?<!evices )(?<!lients )(?<!password )" + BE + r" (?:asked(?! (?:for|to)\b)|said\b(?! to "
        r"be))|\bwhat (?:is|was) asked for|\b(?:not|need not|did not|does not|do not) sa(?:y|id)\b",
        "'query', 'evaluate', 'specify', 'default'",
    ),
    "says-of": ("any", r"\b(?:says?|tells?|said) of\b", "'reports', 'states', 'describes'"),
    "comes-of": ("any", r"\b(?:comes?|came|(?<!whatever )becomes) of\b", "'result', 'outcome', 'effect'"),
    "is-there": (
        "any",
        (
            rf"(?<![Ww]ho ){BE}(?: not| no longer| already| yet| still)? there\b(?! (?:is|are|was|were|an?"
            r"|room|any)\b)"
        ),
        "'exists', 'is present', 'is missing'",
    ),
    "as-x-has-it": ("any", r"\bas (?:[\w`.]+ ){1,3}(?:has|have|had) (?:it|them)\b", "'in the form of'"),
    "number-for-seq": (
        "any",
        (
            r"\b(?:last|first|next|lowest|highest|oldest|newest|up to (?:which|that|a|what)|behind "
            r"(?:the|a|that)|at (?:one|a|its|that|which)) numbers?\b|\bnumbers? (?:of|in|from) "
            r"(?:a|its|the|each) (?:log|node)"
        ),
        "'seq', the glossary's word",
    ),
    "one-a-line": (
        "any",
        (
            rf"\bone(?: (?!of|like|is|has|as|in|for|to|that|where|meets|before|costs)\w+)? an? "
            rf"(?:{UNIT})\b(?! has)|\ban? \w+ each\b(?! second)"
        ),
        "'per', 'for each'",
    ),
    "so-many": ("any", r"\b[Ss]o (?:many|much|few|long) (?!as\b)(?!(?:[\w'*`,-]+ )*(?:that|as)\b)\w", "the amount"),
    "old-words": (
        "any",
        r"\b(?:anew|once more|over again|beg(?:ins?|an) again|but for|whence|in vain)\b",
        "'again', 'rebuild', 'restart', 'except'",
    ),
    "metaphor": (
        "any",
        (
            r"(?i:\b(?:silence|whereabouts|spell(?:s|ed)?|witness(?:es)?|beginnings|suspects?|judg(?:es?|ed"
            r"|ing)|bur(?:y|ied)|heed(?:s|ed)?|wish(?:es)?|ghosts?|seats?)\b)"
        ),
        "the term a reader searches for",
    ),
    "long-sentence": ("prose", r"^(?:\S+ ){35}\S", "at most 35 words"),
    "participle-name": ("name", r"", "a verb or a noun: 'find_open', 'on_message'"),
}
PATTERNS = {rule: re.compile(pattern) for rule, (_, pattern, _) in RULES.items()}
PARTICIPLE = re.compile(
    r"(?!(?:need|feed|seed|speed|embed|exceed|proceed|shed|bed|red)$)[a-z]+ed|taken|told|given|kept"
    r"|held|made|drawn|sent|written|found|met|begun|gone|left|lost|seen|heard|said|shown|known"
)
CODE = re.compile(r"``[^`]*``|`[^`\n]+`")
BREAK = re.compile(r"(?<=[.!?])[)\"'*]*\s+(?=[A-Z*`(])|\n\s*\n|\n\s*(?=Rule:|Reaction:|[-*] |\d+\. |\||>>>|in:)|\s\|\s")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LEADING = re.compile(r"#\s*(noqa|type:|pragma|fmt:|ruff|!|--)")


class Hit(NamedTuple):
    """One sentence or name that matches a rule."""

    file: str
    line: int
    rule: str
    text: str


def sentences(text: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield (line, sentence) of *text*, whose first line is *line*; inline code becomes the word CODE."""
    start = 0
    for end in [*(match.end() for match in BREAK.finditer(text)), len(text)]:
        part = text[start:end]
        words = " ".join(CODE.sub("CODE", part).split()).strip("|-*> ")
        if len(words) > 3 and not part.lstrip().startswith((">>>", "$ ")):
            yield line + text.count("\n", 0, start + len(part) - len(part.lstrip())), words
        start = end


def python_texts(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield (kind, line, text) of the docstrings, comments, raised texts, help texts and participle names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module | ast.ClassDef):
            is_function = isinstance(node, FUNCTIONS)
            for before, statement in zip([None, *node.body], node.body, strict=False):
                follows = before is None or (isinstance(before, ast.Assign | ast.AnnAssign) and not is_function)
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))) if follows:
                        yield "docstring", statement.lineno, text
        if isinstance(node, FUNCTIONS) and not node.decorator_list and PARTICIPLE.fullmatch(node.name.strip("_")):
            yield "name", node.lineno, node.name
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield from strings(node.exc)
        if isinstance(node, ast.keyword) and node.arg in {"help", "short_help", "epilog", "reason"}:
            yield from strings(node.value)
    block: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not LEADING.match(token.string):
            block.append(token)
        elif token.type not in {tokenize.NL, tokenize.COMMENT} and block:
            yield "comment", block[0].start[0], "\n".join(line.string.lstrip("# ") for line in block)
            block = []


def strings(node: ast.AST) -> Iterator[tuple[str, int, str]]:
    """Yield the string literals in *node*; an f-string is one text with ``{}`` for its values."""
    joined = [part for part in ast.walk(node) if isinstance(part, ast.JoinedStr)]
    inside = {id(value) for part in joined for value in part.values}
    for text in joined:
        parts = (str(value.value) if isinstance(value, ast.Constant) else "{}" for value in text.values)
        yield "text", text.lineno, "".join(parts)
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and id(part) not in inside:
            yield "text", part.lineno, part.value


def markdown_texts(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield (kind, line, text) of each prose line and table row, without code, headings and link targets."""
    is_code = False
    for line, text in enumerate(source.splitlines(), 1):
        is_code ^= text.lstrip().startswith("```")
        if not is_code and text.strip() and not text.lstrip().startswith(("#", "```", "<!--", "!")):
            yield ("table" if text.startswith("|") else "prose"), line, re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def hits_of(path: Path, texts: list[tuple[str, int, str]]) -> Iterator[Hit]:
    """Yield the hits in the *texts* of one file."""
    for kind, line, text in texts:
        if kind == "name":
            yield Hit(str(path), line, "participle-name", text)
            continue
        for number, (at, sentence) in enumerate(sentences(text, line)):
            places = {"any", kind, "first"} if kind == "docstring" and number == 0 else {"any", kind}
            for rule, (where, _, _) in RULES.items():
                if where in places and PATTERNS[rule].search(sentence):
                    yield Hit(str(path), at, rule, sentence)


def main() -> int:
    """Print the report; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", default=",".join(RULES), help="rules to apply, separated by commas")
    parser.add_argument("--by", type=int, default=0, help="print no hits, but totals per this many leading path parts")
    parser.add_argument("--max", type=int, help="exit 1 if there are more hits than this")
    parser.add_argument("--baseline", type=Path, help="exit 1 if a package has more than FILE allows")
    parser.add_argument("--update", action="store_true", help="write the baseline, unless a count rose")
    options = parser.parse_args()
    if options.baseline and not options.update and not options.baseline.exists():
        parser.error(f"{options.baseline} does not exist; write it with --update")
    found = {file for path in options.paths for file in ([path] if path.is_file() else path.rglob("*"))}
    hits, docstrings = [], 0
    for file in sorted(file for file in found if file.suffix in {".py", ".md"}):
        try:
            texts = list((python_texts if file.suffix == ".py" else markdown_texts)(file.read_text(encoding="utf-8")))
        except SyntaxError as error:
            print(f"{file}: not read: {error}", file=sys.stderr)
            continue
        docstrings += sum(kind == "docstring" for kind, _, _ in texts)
        hits += [hit for hit in hits_of(file, texts) if hit.rule in options.only.split(",")]
    totals = Counter(hit.rule for hit in hits)
    now = Counter(f"{'/'.join(Path(hit.file).parent.parts[:3])}: {hit.rule}" for hit in hits)
    groups = Counter("/".join(Path(hit.file).parts[: options.by]) for hit in hits) if options.by else Counter[str]()
    is_known = options.baseline is not None and options.baseline.exists()
    allowed = json.loads(options.baseline.read_text(encoding="utf-8")) if is_known else now
    worse = {key: count for key, count in now.items() if count > allowed.get(key, 0)}
    if options.baseline and options.update and not worse:
        options.baseline.write_text(json.dumps(dict(sorted(now.items())), indent=1) + "\n", encoding="utf-8")
    if options.json:
        rows = [hit._asdict() for hit in hits]
        print(json.dumps({"hits": rows, "totals": totals, "docstrings": docstrings, "groups": groups, "worse": worse}))
    else:
        for hit in hits if not options.baseline and not options.by else ():
            print(f"{hit.file}:{hit.line}: {hit.rule} ({RULES[hit.rule][2]}): {hit.text[:160]}")
        for key, count in worse.items():
            print(f"{key}: {count} hits, {allowed.get(key, 0)} allowed")
        for name, count in [*groups.most_common(), *totals.most_common(), ("total", len(hits))]:
            print(f"{count:6d} {count * 1000 / max(docstrings, 1):8.1f} per 1,000 docstrings  {name}")
    return int(bool(worse) or (options.max is not None and len(hits) > options.max))


if __name__ == "__main__":
    sys.exit(main())
