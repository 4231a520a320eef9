"""Images: JPEG and PNG made smaller, by quality and display. The only file that imports Pillow (extra ``images``).

Rule: only the two formats are opened, and the size is looked at before a pixel is decoded.
Rule: what comes out fits the display, and has no more bytes than what came in unless that did not fit.

The level chooses JPEG's quality, and the colours of a PNG, which knows no other loss (the formula that the paper leaves
open). Metadata stays behind: where a picture was taken must not leak.
"""

from __future__ import annotations

import importlib.util
import io
import math
from types import MappingProxyType
from typing import TYPE_CHECKING

from whimbrel.language.policies.values import Compression, Level
from whimbrel.shape.bodies import BodyKind, ImageSize
from whimbrel.shape.faults import Fault, TransformError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["COLOURS", "QUALITIES", "are_supported", "compressed_image", "fitting", "load_decoders"]

QUALITIES = MappingProxyType({Level.WHOLE: 90, Level.MOST: 60, Level.HALF: 35, Level.QUARTER: 15})
"""Of a JPEG."""
COLOURS = MappingProxyType({Level.MOST: 128, Level.HALF: 32, Level.QUARTER: 8})
"""Of a PNG; the whole keeps all."""


def are_supported() -> bool:
    """Tell whether Pillow is installed."""
    return importlib.util.find_spec("PIL") is not None


def load_decoders() -> None:
    """Import what ``compressed_image`` uses, if it is there: a process that may open no file cannot do so later."""
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


def compressed_image(body: bytes, kind: BodyKind, size: ImageSize, wanted: Compression) -> bytes:
    """Return *body*, an image of *kind* whose header says *size*, as *wanted*; or raise ``TransformError``."""
    try:
        from PIL import Image  # an extra
    except ImportError:
        raise TransformError(Fault.NOT_INSTALLED) from None
    target = fitting(size, wanted)
    if wanted.level is Level.WHOLE and target == size:
        return body
    try:
        with Image.open(io.BytesIO(body), formats=(kind.value,)) as image:
            if image.size != size:
                raise TransformError(Fault.UNREADABLE)
            made = _jpeg(image, target, wanted.level) if kind is BodyKind.JPEG else _png(image, target, wanted.level)
    except TransformError:
        raise
    except Exception:  # noqa: BLE001 # Pillow raises whatever its decoders do: a body from outside is to blame
        raise TransformError(Fault.UNREADABLE) from None
    return body if len(made) >= len(body) and target == size else made


def _jpeg(image: Image.Image, target: ImageSize, level: Level) -> bytes:
    image.draft("RGB", target)  # decodes an eighth to a half where that suffices
    made = image if image.mode in {"L", "RGB"} else image.convert("RGB")
    if made.size != target:
        made = made.resize(target, reducing_gap=2.0)
    out = io.BytesIO()
    made.save(out, "JPEG", quality=QUALITIES[level])
    return out.getvalue()


def _png(image: Image.Image, target: ImageSize, level: Level) -> bytes:
    made: Image.Image = image
    if image.size != target:
        made = image.convert("RGBA" if "A" in image.mode or "transparency" in image.info else "RGB")
        made = made.resize(target, reducing_gap=2.0)
    colours = COLOURS.get(level)
    if colours is not None:
        made = made if made.mode in {"RGB", "RGBA"} else made.convert("RGBA" if "A" in made.mode else "RGB")
        made = made.quantize(colours, method=2)  # fast octree: the one that takes transparency too
    out = io.BytesIO()
    made.save(out, "PNG")
    return out.getvalue()
