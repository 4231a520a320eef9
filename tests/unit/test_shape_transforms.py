"""Transforms: bodies get smaller and stay what they are; faults are told; equal work has one key."""

from __future__ import annotations

import io
import json
import random
import struct
import zlib

import pytest
from PIL import Image

from whimbrel.language.policies.limits import PolicyLimits
from whimbrel.language.policies.values import Compression, Level, Projection
from whimbrel.shape.bodies import BodyKind, ImageSize, image_size, kind_of, project, rewritten, write_body
from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.images import fitting
from whimbrel.shape.transforms import Work, cost_of, drop_needless, perform
from whimbrel.shape.work_queue import ResultCache

LIMITS = PolicyLimits()


def picture(form: str, size: tuple[int, int] = (320, 240), mode: str = "RGB") -> bytes:
    """Return an image with something on it, the same each time."""
    noise = random.Random(1).randbytes(size[0] * size[1] * 3 // 64)
    small = Image.frombytes("RGB", (size[0] // 8, size[1] // 8), noise[: size[0] // 8 * (size[1] // 8) * 3])
    out = io.BytesIO()
    small.resize(size, Image.Resampling.BICUBIC).convert(mode).save(
        out, form, **({"quality": 95} if form == "JPEG" else {})
    )
    return out.getvalue()


@pytest.mark.parametrize(
    ("form", "mode"), [("JPEG", "RGB"), ("JPEG", "L"), ("JPEG", "CMYK"), ("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P")]
)
def test_each_level_is_smaller_and_still_an_image(form: str, mode: str) -> None:
    """R2 and R3: less of it for less battery and worse links."""
    body = picture(form, mode=mode)
    sizes = []
    for level in sorted(Level, reverse=True):
        made = perform(Work(body, (Compression(level),)), LIMITS)
        with Image.open(io.BytesIO(made), formats=(form,)) as image:
            image.load()
            assert image.size == (320, 240)
        sizes.append(len(made))
    assert sizes[0] == len(body)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.8 * sizes[0]


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize(
    ("display", "size"),
    [
        (Compression(Level.WHOLE, 160, 320), (160, 120)),
        (Compression(Level.WHOLE, 320, 60), (80, 60)),
        (Compression(Level.WHOLE, pixels=320 * 240 // 4), (160, 120)),
        (Compression(Level.WHOLE, 1, 1, 1), (1, 1)),
        (Compression(Level.WHOLE, 999, 999), (320, 240)),
    ],
)
def test_no_picture_is_larger_than_the_display(form: str, display: Compression, size: tuple[int, int]) -> None:
    """R1: neither wider, nor higher, nor of more pixels."""
    made = perform(Work(picture(form), (display,)), LIMITS)
    assert image_size(made) == size == fitting(ImageSize(320, 240), display)


def test_the_header_of_every_image_tells_its_size() -> None:
    """Progressive and grey ones too: it is how pixels are counted before any is decoded."""
    out = io.BytesIO()
    Image.new("L", (33, 44)).save(out, "JPEG", progressive=True, comment=b"x" * 500)
    for body in (out.getvalue(), picture("PNG", (40, 48))):
        with Image.open(io.BytesIO(body)) as image:
            assert image_size(body) == image.size


def test_a_bomb_is_refused_by_its_header_and_by_its_content() -> None:
    """A few bytes may say that they are a billion pixels; or say less than they are."""
    bomb = picture("PNG")[:16] + (60_000).to_bytes(4, "big") * 2 + picture("PNG")[24:]
    with pytest.raises(TransformError, match="more pixels"):
        cost_of(Work(bomb, (Compression(Level.HALF),)), LIMITS)
    liar = picture("PNG")[:16] + (2).to_bytes(4, "big") * 2 + picture("PNG")[24:]
    with pytest.raises(TransformError) as refused:
        perform(Work(liar, (Compression(Level.HALF),)), LIMITS)
    assert refused.value.fault is Fault.UNREADABLE
    with pytest.raises(TransformError):
        perform(Work(picture("JPEG")[:900], (Compression(Level.HALF),)), LIMITS)


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (("a",), {"a": 1}),
        (("b.c", "zzz"), {"b": {"c": 2}}),
        (("b",), {"b": {"c": 2, "d": [3]}}),
        (("x.y",), {"x.y": 4}),
        (("b.zzz",), {}),
    ],
)
def test_json_is_projected_to_its_named_members(names: tuple[str, ...], kept: object) -> None:
    """By name, or down a path; lists and what is nested come along."""
    body = json.dumps({"a": 1, "b": {"c": 2, "d": [3]}, "x.y": 4}).encode()
    assert json.loads(project(body, names)) == kept
    assert project(b"plain text", names) == b"plain text"


def test_json_follows_the_attributes_that_a_policy_changed() -> None:
    """A device reads the body; what JSON does not have travels as an attribute only."""
    body = b'{"a":{"b":1},"c":2}'
    changes = {"a.b": 5, "c": None, "new": "x", "opaque": b"x", "nan": float("nan")}
    assert json.loads(rewritten(body, changes)) == {"a": {"b": 5}, "new": "x"}
    assert rewritten(b"\x00binary", changes) == b"\x00binary"
    assert (write_body({"a": 1}), write_body({}), write_body({"a": b"x"})) == (b'{"a":1}', b"", b"\xa1aaAx")


def test_compress_projects_json_only_where_something_is_scarce() -> None:
    """From three quarters on all of it; without names nothing can be left out."""
    body = b'{"pulse": 60, "name": "long"}'
    work = Work(body, (Compression(Level.HALF, names=("pulse",)),))
    assert perform(work, LIMITS) == b'{"pulse":60}'
    assert drop_needless(Work(body, (Compression(Level.WHOLE, names=("pulse",)),))) is None
    assert drop_needless(Work(body, (Compression(Level.HALF),))) is None
    assert drop_needless(Work(b"text", (Compression(Level.QUARTER), Projection(("a",))))) is None
    assert work.is_light
    assert not Work(picture("PNG", (16, 16)), ()).is_light


def test_equal_work_has_one_key() -> None:
    """Content, level, display and names; nothing else."""
    one, other = Compression(Level.HALF, 1, 2), Compression(Level.HALF, 2, 1)
    assert Work(b"a", (one,)).key == Work(b"a", (Compression(Level.HALF, 1, 2),)).key
    keys = {Work(b"a", (one,)).key, Work(b"b", (one,)).key, Work(b"a", (other,)).key, Work(b"a", (one,), {"x": 1}).key}
    assert len(keys) == 4


def test_the_cache_is_bounded_and_forgets_the_oldest() -> None:
    """By bytes; what is asked for again stays."""
    cache = ResultCache(10)
    for key in (b"1", b"2"):
        cache.put(key, b"xxxx")
    assert cache.get(b"1") == b"xxxx"
    cache.put(b"3", b"yyyy")
    assert (cache.get(b"1"), cache.get(b"2"), cache.get(b"3")) == (b"xxxx", None, b"yyyy")
    cache.put(b"4", bytes(11))
    assert (cache.get(b"4"), cache.bytes) == (None, 8)


@pytest.mark.parametrize(("body", "kind"), [(b"", BodyKind.OTHER), (b" {", BodyKind.JSON), (b"[1]", BodyKind.OTHER)])
def test_a_body_is_known_by_how_it_begins(body: bytes, kind: BodyKind) -> None:
    """No transform is tried on what it is not for."""
    assert kind_of(body) is kind


def scanned(side: int, extra: int) -> bytes:
    """Return a progressive JPEG with *extra* scans more than it needs."""
    out = io.BytesIO()
    Image.new("RGB", (side, side)).save(out, "JPEG", progressive=True)
    body = out.getvalue()
    return body[:-2] + body[body.rindex(b"\xff\xda") : -2] * extra + body[-2:]


def deep(side: int) -> bytes:
    """Return a PNG of 16 bits a channel."""
    rows = (b"\0" + bytes(8 * side)) * side
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 16, 6, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    framed = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


@pytest.mark.parametrize("body", [scanned(500, 300), deep(400)])
def test_what_takes_long_to_decode_is_refused_before_it_is(body: bytes) -> None:
    """Each scan of a JPEG goes over all of it, and a PNG may have eight bytes a pixel: as so much it counts."""
    size = image_size(body).pixels
    limits = PolicyLimits(image_pixels=size * 2)
    with Image.open(io.BytesIO(body)) as image:
        image.load()  # it is a picture
    for refusing in (cost_of, perform):
        with pytest.raises(TransformError, match="more pixels"):
            refusing(Work(body, (Compression(Level.HALF),)), limits)
    assert cost_of(Work(scanned(500, 0), (Compression(Level.HALF),)), PolicyLimits()).pixels < 600_000
