"""Images: JPEG and PNG made smaller, by quality and display. The only file that imports Pillow (extra ``images``).

Rule: only the two formats are opened, and the size is checked before a pixel is decoded.
Rule: the result has no metadata, fits the display, and is never of a higher quality than the source.
Rule: the result is no longer than the source either: the wanted level and those below it are tried in order, and the
first short enough is taken. If none is, the source is sent; if that does not fit the display, half the size is tried,
and so on.

The level chooses the quality of a JPEG, and the number of colours of a PNG, which has no other lossy setting (the
formula that the paper leaves open). A JPEG is quantized by the coarser of its own tables and those of the level.
"""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from whimbrel.language.policies.values import Compression, Level
from whimbrel.shape.bodies import BodyKind, ImageSize
from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.pictures import Picture
from whimbrel.shape.pictures.orientation import UPRIGHT, written_orientation

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "COLOURS",
    "QUALITIES",
    "are_supported",
    "compressed_image",
    "fitting",
    "load_decoders",
    "stays_as_it_is",
]

QUALITIES = MappingProxyType({Level.WHOLE: 90, Level.MOST: 60, Level.HALF: 35, Level.QUARTER: 15})
"""JPEG quality of each level."""
COLOURS = MappingProxyType({Level.MOST: 128, Level.HALF: 32, Level.QUARTER: 8})
"""Most colours of a PNG at each level; ``Level.WHOLE`` keeps all."""


_TRANSPARENCY = "transparency"
_MAX_COLOURS = 256
_EXIF_HEAD = b"Exif\0\0"
_MIDDLE = 50
"""The JPEG quality at which the quantization tables are those of the standard."""
# fmt: off
_BRIGHTNESS = (
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51,
    87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92, 49, 64, 78, 87, 103, 121, 120, 101,
    72, 92, 95, 98, 112, 100, 103, 99,
)
_COLOUR = (
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99,
)
# fmt: on


def are_supported() -> bool:
    """Return whether Pillow is installed."""
    return importlib.util.find_spec("PIL") is not None


def load_decoders() -> None:
    """Import the decoders of ``compressed_image``, if installed: a process that may open no file cannot do so later."""
    try:
        from PIL import Image  # an extra
    except ImportError:
        return
    for form in (BodyKind.JPEG, BodyKind.PNG):
        out = io.BytesIO()
        Image.new("RGB", (8, 8)).quantize(2, method=2).convert("RGB").save(out, form.value)
        with Image.open(io.BytesIO(out.getvalue()), formats=(form.value,)) as image:
            image.load()


def fitting(size: ImageSize, wanted: Compression) -> ImageSize:
    """Return the largest size of the same shape that fits the display in width, height and pixels."""
    scale = 1.0
    if wanted.width_px:
        scale = min(scale, wanted.width_px / size.width)
    if wanted.height_px:
        scale = min(scale, wanted.height_px / size.height)
    if wanted.pixels:
        scale = min(scale, math.sqrt(wanted.pixels / size.pixels))
    if scale >= 1.0:
        return size
    return ImageSize(max(1, int(size.width * scale)), max(1, int(size.height * scale)))


def stays_as_it_is(size: ImageSize, wanted: Compression, *, is_sideways: bool = False) -> bool:
    """Return whether an image of *size* is sent as it was published, except for its metadata."""
    return wanted.level is Level.WHOLE and _target(size, wanted, is_sideways=is_sideways) == size


def _target(size: ImageSize, wanted: Compression, *, is_sideways: bool) -> ImageSize:
    """Return the size that *wanted* allows; an image that *is_sideways* is shown with width and height exchanged."""
    if not is_sideways:
        return fitting(size, wanted)
    height, width = fitting(ImageSize(size.height, size.width), wanted)
    return ImageSize(width, height)


def compressed_image(picture: Picture, kind: BodyKind, size: ImageSize, wanted: Compression) -> bytes:
    """Return *picture*, of *kind* and of *size* in its header, compressed as *wanted*; or raise ``TransformError``."""
    if stays_as_it_is(size, wanted, is_sideways=picture.is_sideways):
        return picture.body
    try:
        from PIL import Image  # an extra
    except ImportError:
        raise TransformError(Fault.NOT_INSTALLED) from None
    target = _target(size, wanted, is_sideways=picture.is_sideways)
    try:
        with Image.open(io.BytesIO(picture.body), formats=(kind.value,)) as image:
            if image.size != size:
                raise TransformError(Fault.UNREADABLE)
            maker = _jpegs if kind is BodyKind.JPEG else _pngs
            made = maker(image, _sizes(target) if target != size else [target], wanted.level, picture)
            return _first_short(made, picture.body, must_shrink=target != size)
    except TransformError:
        raise
    except Exception:  # noqa: BLE001 # Pillow raises whatever its decoders do: a body from outside is to blame
        raise TransformError(Fault.UNREADABLE) from None


def _first_short(made: Iterator[bytes], source: bytes, *, must_shrink: bool) -> bytes:
    """Return the first of the *made* bodies that is no longer than *source*; else *source*.

    If it must shrink, because *source* does not fit the display, the fallback is the shortest of *made*.
    """
    shortest: bytes | None = None
    for body in made:
        if len(body) <= len(source):
            return body
        if shortest is None or len(body) < len(shortest):
            shortest = body
    return shortest if must_shrink and shortest is not None else source


def _sizes(size: ImageSize) -> list[ImageSize]:
    """Return *size*, and its halves down to a pixel."""
    sizes = [size]
    while size.pixels > 1:
        size = ImageSize(max(1, size.width // 2), max(1, size.height // 2))
        sizes.append(size)
    return sizes


def _levels(level: Level) -> Iterator[Level]:
    """Yield *level* and those below it."""
    return (each for each in sorted(Level, reverse=True) if each <= level)


def _metadata_options(picture: Picture, profile: bytes | None) -> dict[str, Any]:
    """Return Pillow's options for the metadata of a re-encoded picture: its colour profile and its orientation."""
    kept: dict[str, Any] = {} if profile is None else {"icc_profile": profile}
    if picture.orientation != UPRIGHT:
        kept["exif"] = _EXIF_HEAD + written_orientation(picture.orientation)
    return kept


# -- JPEG --------------------------------------------------------------------------------------------------------------


def _jpegs(image: Image.Image, sizes: Sequence[ImageSize], level: Level, picture: Picture) -> Iterator[bytes]:
    """Yield the JPEG of *level* and of those below it, in each of *sizes*."""
    kept = _metadata_options(picture, image.info.get("icc_profile"))
    own = _own_tables(image)
    image.draft(None, sizes[0])  # decodes an eighth to a half where that suffices
    image.load()
    for size in sizes:
        made = image if image.size == size else image.resize(size, reducing_gap=2.0)
        for each in _levels(level):
            tables = [list(map(max, *both)) for both in zip(own, _tables(QUALITIES[each]), strict=False)]
            for optimize in (False, True):  # a small picture is shorter with codes of its own
                out = io.BytesIO()
                made.save(out, "JPEG", qtables=tables, subsampling="4:2:0", comment=b"", optimize=optimize, **kept)
                yield out.getvalue()


def _own_tables(image: Image.Image) -> list[list[int]]:
    """Return the coarsest quantization steps of *image* for brightness and, if it has colours, for these.

    Each component of a source names its table; when writing, Pillow uses one table for the first component and one for
    the others, and in a picture without brightness (CMYK) one for all.
    """
    used = [image.quantization[layer[3]] for layer in image.layer]  # type: ignore[attr-defined]  # of a JPEG
    shared = [used] if image.mode == "CMYK" else [used[:1], used[1:]]
    return [list(map(max, *tables, tables[0])) for tables in shared if tables]


def _tables(quality: int) -> Iterator[list[int]]:
    """Yield the quantization tables of a *quality* for brightness and for colours (JPEG, annex K)."""
    scale = 5_000 // quality if quality < _MIDDLE else 200 - 2 * quality
    for table in (_BRIGHTNESS, _COLOUR):
        yield [min(max((step * scale + 50) // 100, 1), 255) for step in table]


# -- PNG ---------------------------------------------------------------------------------------------------------------


def _pngs(image: Image.Image, sizes: Sequence[ImageSize], level: Level, picture: Picture) -> Iterator[bytes]:
    """Yield the PNG of *level* and of those below it, in each of *sizes*."""
    kept = _metadata_options(picture, image.info.get("icc_profile"))
    image.load()
    for size in sizes:
        resized = image if image.size == size else _resize(image, size)
        for each in _levels(level):
            colours = COLOURS.get(each)
            made = resized if colours is None else _with_colours(resized, colours)
            made.info = {name: value for name, value in made.info.items() if name == _TRANSPARENCY}
            out = io.BytesIO()
            made.save(out, "PNG", **kept)
            yield out.getvalue()


def _resize(image: Image.Image, target: ImageSize) -> Image.Image:
    """Return *image* in another size, of the same mode and with the same palette."""
    from PIL.Image import Dither, Resampling  # an extra

    match image.mode:
        case "1":
            return image.convert("L").resize(target, reducing_gap=2.0).convert("1", dither=Dither.NONE)
        case "P" if _TRANSPARENCY in image.info:
            return image.resize(target, Resampling.NEAREST)
        case "P":
            return image.convert("RGB").resize(target, reducing_gap=2.0).quantize(palette=image, dither=Dither.NONE)
        case "L" | "LA" | "RGB" | "RGBA" if _TRANSPARENCY not in image.info:
            return image.resize(target, reducing_gap=2.0)
        case _:  # one colour that is transparent must not be mixed with others; deep greys are not mixed by Pillow
            return image.resize(target, Resampling.NEAREST)


def _with_colours(image: Image.Image, colours: int) -> Image.Image:
    """Return *image* with at most *colours* colours in a palette, or greys."""
    match image.mode:
        case "1":
            return image
        case "P":
            if len(image.getcolors(_MAX_COLOURS) or ()) <= colours:
                return image
        case "I" | "I;16" | "I;16B" | "I;16L":
            image = image.convert("I").point(lambda grey: grey * (1 / 256)).convert("L")
    if image.mode == "L" and _TRANSPARENCY not in image.info:
        step = -(-_MAX_COLOURS // colours)
        return image.point([min(grey // step * step + step // 2, _MAX_COLOURS - 1) for grey in range(_MAX_COLOURS)])
    has_alpha = image.mode in {"LA", "PA", "RGBA"} or _TRANSPARENCY in image.info
    return image.convert("RGBA" if has_alpha else "RGB").quantize(colours, method=2)  # fast octree: it takes alpha too
