"""CBOR bodies: bytes from outside to a tree of plain Python values.

Rule: any bytes give a tree or ``MalformedBodyError``; the size is checked before parsing.
Rule: the only accepted tags are big integers (2, 3) and "this is CBOR" (55799). Other tags would build dates, regular
expressions, shared references and other values that cannot be attributes, at the sender's choice and our cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from typing import NoReturn

import cbor2

from whimbrel.errors import MalformedBodyError
from whimbrel.model.attributes import DEFAULT_LIMITS, Limits

__all__ = ["read_cbor"]

_FORM = "CBOR"
_READ_TAGS = frozenset({2, 3, 55799})
_MAX_READ_BYTES = 65_536

_Decoder = Callable[[object, bool], NoReturn]


class _RefusedTags(Mapping[int, _Decoder]):
    """Decoders for all refused tags; the decoder asks here before its own table, so that nothing is built."""

    def __getitem__(self, tag: int) -> _Decoder:
        if tag in _READ_TAGS:
            raise KeyError(tag)

        def refuse(_value: object, _immutable: bool) -> NoReturn:  # noqa: FBT001 # cbor2 calls it so
            allowed = ", ".join(str(known) for known in sorted(_READ_TAGS))
            raise MalformedBodyError(_FORM, f"found tag {tag}, allowed are {allowed}")

        return refuse

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 1  # not empty: cbor2 could take an empty mapping for None


_REFUSED_TAGS = _RefusedTags()


def read_cbor(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> Mapping[object, object]:
    """Return the map that *data* encodes; its keys may still be byte strings."""
    if len(data) > limits.max_bytes:
        raise MalformedBodyError(_FORM, f"found {len(data)} bytes, allowed are {limits.max_bytes}")
    source = BytesIO(data)
    try:
        tree: object = _decoder(source, limits, _MAX_READ_BYTES).decode()
    except cbor2.CBORDecodeError as error:
        raise MalformedBodyError(_FORM, _reason(error), offset=_offset(data, limits)) from None
    except RecursionError:  # only if the caller's own stack is nearly full
        raise MalformedBodyError(_FORM, "nested too deeply for the stack it was read on") from None
    if source.tell() != len(data):
        raise MalformedBodyError(_FORM, "found bytes after the end of the body", offset=source.tell())
    if not isinstance(tree, Mapping):
        raise MalformedBodyError(_FORM, f"found {type(tree).__name__} on top, allowed is a map")
    return tree


def _decoder(source: BytesIO, limits: Limits, read_bytes: int) -> cbor2.CBORDecoder:
    return cbor2.CBORDecoder(
        source,
        semantic_decoders=_REFUSED_TAGS,
        read_size=read_bytes,
        max_depth=limits.max_depth,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
    )


def _reason(error: cbor2.CBORDecodeError) -> str:
    if isinstance(error.__cause__, MalformedBodyError):
        return error.__cause__.reason
    return str(error) if error.__cause__ is None else f"{error}: {error.__cause__}"


def _offset(data: bytes, limits: Limits) -> int:
    """Return the offset of the error by decoding again byte by byte; only refused bodies are decoded twice."""
    source = BytesIO(data)
    with suppress(cbor2.CBORDecodeError):
        _decoder(source, limits, 1).decode()
    return source.tell()
