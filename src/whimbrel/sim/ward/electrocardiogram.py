"""The electrocardiogram of a patient: generated voltages, drawn as a JPEG as a monitor's printer does.

A beat is the sum of five bell curves, the waves P, Q, R, S and T, at fixed shares of the time between two beats. The
baseline moves with the breath, and the electrodes add noise. That suffices for a picture that compresses like a real
one.

Rule: the same seed gives the same bytes, with the same version of Pillow.
"""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from whimbrel.errors import MissingDependencyError
from whimbrel.model.bounds import real, whole

__all__ = ["HEIGHT_PX", "SECONDS", "WIDTH_PX", "draw", "leads"]

WIDTH_PX, HEIGHT_PX = 640, 480
SECONDS = 4.0
"""Seconds that one picture shows."""
_LEADS = 6
_RATE_HZ = 500
_WAVES = (  # position as a share of a beat, height in millivolts, width in seconds
    (0.16, 0.12, 0.025),
    (0.32, -0.12, 0.010),
    (0.35, 1.10, 0.011),
    (0.38, -0.25, 0.011),
    (0.62, 0.28, 0.045),
)
_NOISE_MV, _WANDER_MV, _BREATHS_HZ = 0.03, 0.08, 0.25
_PAPER, _GRID, _THICK_GRID, _INK = (253, 240, 238), (244, 205, 203), (231, 160, 158), (24, 24, 32)
_GRAIN = 6.0
"""Standard deviation of the paper's grain, in shades: scanned paper never has exactly one colour."""
_QUALITY = 77


def leads(pulse: float, rng: np.random.Generator, *, seconds: float = SECONDS) -> NDArray[np.float64]:
    """Return the voltages in millivolts, one row per lead, of a heart that beats *pulse* times a minute."""
    real("pulse", pulse, 1, 400)
    moments = np.arange(round(seconds * _RATE_HZ)) / _RATE_HZ
    beat_s = 60.0 / pulse
    begins = np.arange(-1, int(seconds / beat_s) + 2) * beat_s + rng.uniform(0, beat_s)
    begins = begins + rng.normal(0, 0.01 * beat_s, begins.size)  # no heart beats like a clock
    heart = np.zeros_like(moments)
    for share, height_mv, width_s in _WAVES:
        away = moments[:, None] - (begins + share * beat_s)
        heart += height_mv * np.exp(-0.5 * (away / width_s) ** 2).sum(axis=1)
    gains = rng.uniform(0.4, 1.2, (_LEADS, 1)) * rng.choice((-1.0, 1.0), (_LEADS, 1), p=(0.2, 0.8))
    wander = _WANDER_MV * np.sin(2 * np.pi * _BREATHS_HZ * moments + rng.uniform(0, 2 * np.pi, (_LEADS, 1)))
    volts: NDArray[np.float64] = gains * heart + wander + rng.normal(0, _NOISE_MV, (_LEADS, moments.size))
    return volts


def draw(
    volts: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    width_px: int = WIDTH_PX,
    height_px: int = HEIGHT_PX,
) -> bytes:
    """Draw *volts*, one row per lead, as a JPEG of the given size: ink on the paper of a monitor's printer."""
    try:
        from PIL import Image, ImageDraw
    except ModuleNotFoundError as error:
        remedy = "run: pip install 'whimbrel[images]'"
        raise MissingDependencyError("an electrocardiogram", error.name or "PIL", remedy) from None
    whole("width_px", width_px, 16, 4_096)
    whole("height_px", height_px, 16, 4_096)
    picture = Image.new("RGB", (width_px, height_px), _PAPER)
    pen = ImageDraw.Draw(picture)
    step = max(4, width_px // 100)
    for across, end_px in ((True, width_px), (False, height_px)):
        for number, at in enumerate(range(0, end_px, step)):
            line = (at, 0, at, height_px) if across else (0, at, width_px, at)
            pen.line(line, fill=_GRID if number % 5 else _THICK_GRID)
    room = height_px / len(volts)
    places = np.linspace(0, width_px - 1, volts.shape[1])
    for number, lead in enumerate(volts):
        heights = (number + 0.6) * room - lead * room * 0.45
        pen.line(list(zip(places.tolist(), heights.tolist(), strict=True)), fill=_INK, width=2)
    shades = np.asarray(picture, dtype=np.float32) + rng.normal(0, _GRAIN, (height_px, width_px, 1))
    out = io.BytesIO()
    Image.fromarray(shades.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=_QUALITY)
    return out.getvalue()
