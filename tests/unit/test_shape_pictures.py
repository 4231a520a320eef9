"""Pictures: nothing beside them leaks, and what is made of them is no longer, no better, and of the same kind."""

from __future__ import annotations

import base64
import io
import json
import struct

import cbor2
import pytest
from PIL import Image, ImageCms, ImageDraw, PngImagePlugin

from whimbrel.language.policies.limits import PolicyLimits
from whimbrel.language.policies.values import Compression, Level
from whimbrel.shape.bodies import BodyKind, image_size
from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.pictures import without_metadata
from whimbrel.shape.pictures.orientation import orientation_of, written_orientation
from whimbrel.shape.transforms import Work, perform

LIMITS = PolicyLimits()
SECRET = b"47.3769,8.5417 taken by Anna"
ORIENTATION, GPS = 0x0112, 0x8825
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
DISPLAY = Compression(Level.WHOLE, 20, 20)
LEVELS = [Compression(level) for level in Level] + [DISPLAY]


def drawing(mode: str = "RGB", side: int = 64) -> Image.Image:
    """Return a picture with edges and slopes in it."""
    image = Image.linear_gradient("L").resize((side, side)).convert("RGB")
    ImageDraw.Draw(image).ellipse((8, 8, side - 20, side - 8), fill=(200, 30, 30))
    return image.convert(mode) if mode != "I;16" else image.convert("I").point(lambda grey: grey * 200).convert("I;16")


def jpeg(orientation: int = 6, quality: int = 90, mode: str = "RGB", **options: object) -> bytes:
    """Return a JPEG that says more than it shows, in every place that there is for it."""
    exif = Image.Exif()
    exif[ORIENTATION], exif[0x010E] = orientation, SECRET.decode()
    exif[GPS] = {1: "N", 2: (47.0, 22.0, 36.0)}
    out = io.BytesIO()
    options = {"exif": exif, "comment": SECRET, "icc_profile": PROFILE, "xmp": SECRET, **options}
    drawing(mode).save(out, "JPEG", quality=quality, **options)
    body = out.getvalue()
    hidden = b"".join(segment(marker, SECRET) for marker in range(0xE0, 0xF0))
    if mode == "RGB":
        hidden += segment(0xEE, b"Adobe" + bytes((0, 100, 0, 0, 0, 0, 1)) + SECRET)
    return body[:2] + hidden + body[2:-2] + segment(0xFE, SECRET) + b"\xff\xd9" + SECRET


def segment(marker: int, data: bytes) -> bytes:
    """Return a segment of a JPEG."""
    return b"\xff" + bytes((marker,)) + struct.pack(">H", 2 + len(data)) + data


def png(orientation: int = 6, mode: str = "RGB") -> bytes:
    """Return a PNG that says more than it shows."""
    info, exif = PngImagePlugin.PngInfo(), Image.Exif()
    exif[ORIENTATION], exif[0x010E] = orientation, SECRET.decode()
    info.add_text("Author", SECRET.decode())
    info.add_text("Long", SECRET.decode() * 9, zip=True)
    info.add_itxt("XML:com.adobe.xmp", SECRET.decode())
    info.add(b"tIME", bytes(7))
    info.add(b"prVt", SECRET)
    out = io.BytesIO()
    drawing(mode).save(out, "PNG", pnginfo=info, exif=exif, icc_profile=PROFILE)
    return out.getvalue() + SECRET


@pytest.mark.parametrize("wanted", LEVELS)
@pytest.mark.parametrize("body", [jpeg(), jpeg(progressive=True), png()], ids=["JPEG", "progressive", "PNG"])
def test_no_metadata_leaves_with_a_picture(body: bytes, wanted: Compression) -> None:
    """As it was published, made smaller, or made for the display; profile and orientation stay."""
    made = perform(Work(body, (wanted,)), LIMITS)
    with Image.open(io.BytesIO(made)) as image:
        image.load()
        assert dict(image.getexif()) == {ORIENTATION: 6}
        assert image.info["icc_profile"] == PROFILE
        assert not {"comment", "xmp", "Author", "Long", "XML:com.adobe.xmp"} & image.info.keys()
    assert SECRET not in made
    assert not any(name in made for name in (b"tEXt", b"zTXt", b"iTXt", b"tIME", b"prVt"))


@pytest.mark.parametrize("marker", [0x02, 0xBF, 0xC8, *range(0xF0, 0xFE)])
def test_a_segment_that_draws_nothing_is_left_out(marker: int) -> None:
    """Some decoders pass over markers that are not in use, so such a segment is one more place for a text."""
    body = jpeg()
    hidden = body[:2] + segment(marker, SECRET) + body[2:]
    assert without_metadata(hidden, BodyKind.JPEG) == without_metadata(body, BodyKind.JPEG)


@pytest.mark.parametrize("body", [jpeg(orientation=1), png(orientation=1)], ids=["JPEG", "PNG"])
def test_a_picture_that_is_sent_as_it_is_keeps_its_pixels(body: bytes) -> None:
    """Nothing is decoded for it: a picture that Pillow cannot read, and whose data say so, loses its metadata too."""
    made = perform(Work(body, (Compression(Level.WHOLE),)), LIMITS)
    with Image.open(io.BytesIO(body)) as source, Image.open(io.BytesIO(made)) as image:
        assert image.tobytes() == source.tobytes()
        assert not dict(image.getexif())
    assert perform(Work(made, (Compression(Level.WHOLE),)), LIMITS) == made
    large = made.replace(struct.pack(">HH", 64, 64), struct.pack(">HH", 60_000, 60_000), 1)
    assert perform(Work(large, (Compression(Level.WHOLE),)), LIMITS) == large


@pytest.mark.parametrize("body", [jpeg(), png()], ids=["JPEG", "PNG"])
def test_a_picture_on_its_side_fits_the_display_as_it_is_shown(body: bytes) -> None:
    """Its width is the height of the display."""
    body = body if body.startswith(b"\x89PNG") else jpeg()
    made = perform(Work(body, (Compression(Level.WHOLE, 64, 32),)), LIMITS)
    assert image_size(made) == (32, 32)
    wide = io.BytesIO()
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    drawing().resize((64, 32)).save(wide, "JPEG", exif=exif)
    assert image_size(perform(Work(wide.getvalue(), (Compression(Level.WHOLE, 64, 32),)), LIMITS)) == (32, 16)
    assert image_size(perform(Work(wide.getvalue(), (Compression(Level.WHOLE, 32, 64),)), LIMITS)) == (64, 32)


def tables(body: bytes) -> list[list[int]]:
    """Return the quantization tables of a JPEG."""
    with Image.open(io.BytesIO(body)) as image:
        return [list(table) for _, table in sorted(image.quantization.items())]  # type: ignore[attr-defined]  # of a JPEG


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("quality", [2, 20, 95])
def test_a_jpeg_is_made_no_better_than_it_was_and_no_longer(quality: int, mode: str) -> None:
    """One of quality 2 became ten times longer at quality 60."""
    body = jpeg(1, quality, mode, icc_profile=None)
    source = without_metadata(body, BodyKind.JPEG).body
    for wanted in LEVELS:
        made = perform(Work(body, (wanted,)), LIMITS)
        assert len(made) <= len(source)
        for own, table in zip(tables(source), tables(made), strict=True):
            assert all(finest <= step for finest, step in zip(own, table, strict=True))
        with Image.open(io.BytesIO(made)) as image:
            assert image.mode == mode
            assert wanted is not DISPLAY or max(image.size) == 20


def test_each_colour_of_a_jpeg_is_made_no_better_than_it_was() -> None:
    """A camera may give each component a table of its own; Pillow gives one to both colours."""
    out = io.BytesIO()
    drawing().save(out, "JPEG", qtables=[[40] * 64, [50] * 64, [200] * 64])
    made = perform(Work(out.getvalue(), (DISPLAY,)), LIMITS)
    assert [min(table) for table in tables(made)] == [40, 200]


@pytest.mark.parametrize("mode", ["1", "RGB"])
def test_a_small_picture_made_for_a_display_is_no_longer(mode: str) -> None:
    """A JPEG of 629 bytes became 683, of which 420 were tables of codes; a dithered PNG a fifth longer."""
    source, out = Image.linear_gradient("L").resize((300, 200)).convert(mode), io.BytesIO()
    if mode == "1":
        Image.new("RGB", (300, 200), (12, 200, 77)).convert("1").save(out, "PNG", optimize=True)
    else:
        source.resize((64, 48)).save(out, "JPEG", quality=2, progressive=True)
    for width in (299, 50, 1):
        made = perform(Work(out.getvalue(), (Compression(Level.QUARTER, width),)), LIMITS)
        assert image_size(made).width <= width
        assert len(made) <= len(out.getvalue())


@pytest.mark.parametrize("mode", ["1", "P", "L", "LA", "RGB", "RGBA", "I;16"])
def test_a_png_keeps_its_kind_and_grows_no_longer(mode: str) -> None:
    """A plan of 3.6 KB in two colours became 105 KB of red, green and blue."""
    out = io.BytesIO()
    drawing(mode).save(out, "PNG", optimize=True)
    body = out.getvalue()
    for wanted in LEVELS:
        made = perform(Work(body, (wanted,)), LIMITS)
        assert len(made) <= len(body)
        with Image.open(io.BytesIO(made)) as image:
            allowed = {mode} if wanted.level is Level.WHOLE or mode in {"1", "L"} else {mode, "P", "L"}
            assert image.mode in allowed
            assert wanted is not DISPLAY or image.size == (20, 20)


def test_the_display_holds_where_every_level_is_longer() -> None:
    """A plan that compresses well grows when it is made smaller: the shortest that fits is sent."""
    out = io.BytesIO()
    checks = Image.frombytes("1", (256, 256), bytes((0b10101010,) * 32 * 256))
    checks.save(out, "PNG", optimize=True)
    made = perform(Work(out.getvalue(), (Compression(Level.QUARTER, 100, 90),)), LIMITS)
    assert image_size(made) == (90, 90)


@pytest.mark.parametrize("body", [jpeg(), png()], ids=["JPEG", "PNG"])
def test_a_picture_that_ends_too_early_is_refused(body: bytes) -> None:
    """Whatever strangers cut: no exception but ours."""
    kind = BodyKind.JPEG if body.startswith(b"\xff") else BodyKind.PNG
    whole = body.index(SECRET, len(body) - len(SECRET))
    assert without_metadata(body[:whole], kind) == without_metadata(body, kind)
    for end in range(9, whole, 7):
        with pytest.raises(TransformError) as refused:
            without_metadata(body[:end], kind)
        assert refused.value.fault is Fault.UNREADABLE


def test_orientation_is_read_in_both_orders_and_any_bytes_are_upright() -> None:
    """EXIF is written by cameras, and by strangers."""
    assert [orientation_of(written_orientation(number)) for number in range(10)] == [1, 1, 2, 3, 4, 5, 6, 7, 8, 1]
    exif = Image.Exif()
    exif[ORIENTATION] = 3
    assert orientation_of(exif.tobytes()[6:]) == 3
    for hostile in (b"", b"II*\0", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff", b"what"):
        assert orientation_of(hostile) == 1


def smaller(body: bytes, level: Level = Level.HALF, *names: str) -> bytes:
    """Return what ``compress`` makes of a body with the named members."""
    return perform(Work(body, (Compression(level, 32, 32, names=names or ("ecg",)),)), LIMITS)


@pytest.mark.parametrize("level", [Level.WHOLE, Level.QUARTER])
def test_a_picture_among_members_becomes_smaller_and_the_others_stay(level: Level) -> None:
    """To the byte: of CBOR in bytes, of JSON in base64, wherever its path leads."""
    picture = jpeg()
    text = base64.b64encode(picture).decode()
    bodies = (
        cbor2.dumps({"pulse": 80, "at": 1.5, "ecg": picture, "e": {"cg": b"rest"}}),
        json.dumps({"pulse": 80.0, "at": 1.50, "ecg": text}, indent=1).encode(),
        json.dumps({"pulse": 80, "ecg": text}).replace("/", "\\/").encode(),
        json.dumps({"ecg": " \n" + text}).replace("/9j", "\\u002f9\\u006A").encode(),
        json.dumps({"ecg": "\\u002f" + text[1:], "same": text}).replace("\\\\", "\\").encode(),
    )
    for body in bodies:
        made = smaller(body, level)
        is_cbor = body[0] >= 0xA0
        source, found = (cbor2.loads(each) if is_cbor else json.loads(each) for each in (body, made))
        ecg = found.pop("ecg") if is_cbor else base64.b64decode(found.pop("ecg"))
        source.pop("ecg")
        assert found == source
        assert image_size(ecg) == (32, 32)
        assert SECRET not in ecg
        assert smaller(made, level) == made or level is not Level.WHOLE
    deep = cbor2.dumps({"ward": {"ecg": picture}})
    assert image_size(cbor2.loads(smaller(deep, level, "ward.ecg"))["ward"]["ecg"]) == (32, 32)


def test_names_mean_what_they_meant_where_no_named_member_is_a_picture() -> None:
    """So decisions of older logs replay equally; a picture that is not named is not looked at."""
    text = base64.b64encode(jpeg()).decode()
    body = json.dumps({"pulse": 80, "ecg": [1, 2], "photo": text}).encode()
    assert json.loads(smaller(body, Level.HALF, "pulse", "ecg")) == {"pulse": 80, "ecg": [1, 2]}
    assert smaller(body, Level.WHOLE, "pulse", "ecg") == body
    for other in (cbor2.dumps({"pulse": 80, "ecg": b"none", "photo": jpeg()}), b"\xa1binary" + jpeg()):
        assert smaller(other, Level.HALF) == other
    assert not Work(body, (Compression(Level.HALF, names=("pulse",)),)).makes_pictures
    assert Work(body, (Compression(Level.HALF, names=("photo",)),)).makes_pictures


def test_a_member_that_begins_as_a_picture_and_is_none_is_refused() -> None:
    """It is not passed on as it came; and all pictures of a body count together."""
    for body in (
        cbor2.dumps({"ecg": jpeg()[:900]}),
        json.dumps({"ecg": base64.b64encode(png()[:99]).decode()}).encode(),
    ):
        with pytest.raises(TransformError) as refused:
            smaller(body, Level.WHOLE)
        assert refused.value.fault is Fault.UNREADABLE
    work = Work(cbor2.dumps({"a": jpeg(), "b": png()}), (Compression(Level.HALF, names=("a", "b")),))
    assert perform(work, PolicyLimits(image_pixels=2 * 64 * 64))
    with pytest.raises(TransformError, match="more pixels"):
        perform(work, PolicyLimits(image_pixels=2 * 64 * 64 - 1))
    assert not work.is_light
