"""Pictures that are members of a CBOR map (as bytes) or of a JSON object (as base64), made smaller in place.

Rule: the other members stay, byte for byte if each picture occurs in the body once.
Rule: a member that begins as a picture is one: it is made smaller, or the body is refused; it never passes unchecked.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import cbor2

from whimbrel.errors import MalformedBodyError
from whimbrel.model.attributes import Limits
from whimbrel.model.cbor_body import read_cbor
from whimbrel.model.json_body import read_json
from whimbrel.shape.bodies import BodyKind, kind_of
from whimbrel.shape.faults import Fault, TransformError

__all__ = ["IMAGES", "may_hold_pictures", "with_smaller_pictures"]

IMAGES = frozenset({BodyKind.JPEG, BodyKind.PNG})
_LIMITS = Limits(max_bytes=1 << 30, max_depth=64)
_BLANKS = " \t\r\n"
"""White space, which base64 decoders ignore."""
_NO_BLANKS = str.maketrans("", "", _BLANKS)


def _written_any_way(character: str) -> str:
    """Return the regular expression of one character of a JSON string, plain or escaped, behind any blanks."""
    blanks = rf"(?:[{_BLANKS}]|\\[trn]|\\u00(?:20|09|0[aA]|0[dD]))*+"
    return rf"{blanks}(?:\\?{re.escape(character)}|\\u00(?i:{ord(character):02x}))"


_MARKS = {
    BodyKind.JSON: re.compile(
        "|".join('"' + "".join(map(_written_any_way, mark)) for mark in ("/9j", "iVBORw0")).encode()
    ),
    BodyKind.CBOR: re.compile(rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n"),
}
"""Patterns of the first bytes of a picture, by the kind of the body that contains it."""
_Tree: TypeAlias = dict[Any, Any]
_Smaller: TypeAlias = Callable[[bytes, BodyKind], bytes]


def may_hold_pictures(body: bytes, kind: BodyKind) -> bool:
    """Return whether a member of *body* may begin as a picture; nothing is parsed, so true may be wrong."""
    mark = _MARKS.get(kind)
    return mark is not None and mark.search(body) is not None


def with_smaller_pictures(body: bytes, kind: BodyKind, names: tuple[str, ...], smaller: _Smaller) -> bytes | None:
    """Return *body* with the pictures among the named members made *smaller*; None if none of these is a picture.

    A name is that of a member, or a path: ``a.b`` is the member b of a.
    """
    tree = _read(body, kind)
    if tree is None:
        return None
    found = False
    for inner, key in _members(tree, names):
        picture = _picture(inner[key], kind)
        if picture is None:
            continue
        found, made = True, smaller(picture, kind_of(picture))
        if made != picture:
            old, inner[key] = inner[key], made if kind is BodyKind.CBOR else base64.b64encode(made).decode()
            body = _replace_member(body, kind, old, inner[key])
            if _read(body, kind) != tree:  # it was encoded differently, or occurs more than once
                body = _write_tree(tree, kind)
    return body if found else None


def _read(body: bytes, kind: BodyKind) -> _Tree | None:
    """Return the members of *body*; None if it begins like CBOR but cannot be decoded."""
    try:
        return read_json(body, limits=_LIMITS) if kind is BodyKind.JSON else dict(read_cbor(body, limits=_LIMITS))
    except MalformedBodyError:
        if kind is BodyKind.CBOR:  # any bytes may begin so
            return None
        raise TransformError(Fault.UNREADABLE) from None


def _members(tree: _Tree, names: tuple[str, ...]) -> Iterator[tuple[_Tree, str]]:
    """Yield each named member that exists, as its parent object and its key in it."""
    for name in names:
        inner: Any = tree
        while isinstance(inner, dict) and name not in inner and "." in name:
            head, _, name = name.partition(".")  # noqa: PLW2901 # what is left of the path
            inner = inner.get(head)
        if isinstance(inner, dict) and name in inner:
            yield inner, name


def _picture(value: object, kind: BodyKind) -> bytes | None:
    """Return the picture in a member's value; None if it is not a picture."""
    if kind is BodyKind.JSON and isinstance(value, str):
        try:
            value = base64.b64decode(value.translate(_NO_BLANKS), validate=True)
        except (binascii.Error, ValueError):
            return None
    return value if isinstance(value, bytes) and kind_of(value) in IMAGES else None


def _replace_member(body: bytes, kind: BodyKind, old: object, new: object) -> bytes:
    """Return *body* with the first *old* replaced by *new*; unchanged if *old* is encoded otherwise than by us."""
    return body.replace(_encode_member(old, kind), _encode_member(new, kind), 1)


def _encode_member(value: object, kind: BodyKind) -> bytes:
    return cbor2.dumps(value) if kind is BodyKind.CBOR else json.dumps(value, ensure_ascii=False).encode()


def _write_tree(tree: Mapping[Any, Any], kind: BodyKind) -> bytes:
    if kind is BodyKind.CBOR:
        return cbor2.dumps(tree)
    return json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
