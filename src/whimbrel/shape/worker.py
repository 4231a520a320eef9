"""The process that performs transforms: frames come in on standard input, results go out on standard output.

Rule: it is a sandbox: a decoder that a hostile image takes over can open and write no file and start no process, has
bounded memory, and can only answer with bytes, which the broker treats like any body.
Rule: the frame states the core time of its work, which does not depend on the load of the machine; the kernel ends a
process that takes more, also inside a decoder.
A frame is its length (uint32, big-endian) and CBOR; an answer is its length, one byte (0: a body, else the number of
the fault) and the body.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from contextlib import suppress
from typing import Any, BinaryIO

import cbor2

from whimbrel.language.policies.limits import PolicyLimits
from whimbrel.language.policies.values import Compression, Level, Projection, Transform
from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.images import load_decoders
from whimbrel.shape.transforms import Work, perform

__all__ = ["FAULTS", "LENGTH", "MAX_MEMORY_BYTES", "OUT_OF_TIME", "encode_request", "main"]

LENGTH = struct.Struct(">I")
FAULTS = tuple(Fault)
MAX_MEMORY_BYTES = 2 << 30
_NOBODY = 65_534
OUT_OF_TIME = getattr(signal, "SIGPROF", None)
"""The signal that ends a process whose work took too much core time; None on platforms without it."""


def encode_request(work: Work, limits: PolicyLimits, core_s: float) -> bytes:
    """Return the frame that requests *work*, limited to *core_s* seconds of core time."""
    transforms = [
        [int(each.level), each.width_px, each.height_px, each.pixels, each.names]
        if isinstance(each, Compression)
        else list(each.names)
        for each in work.transforms
    ]
    kinds = [isinstance(each, Compression) for each in work.transforms]
    payload = cbor2.dumps([work.body, kinds, transforms, dict(work.changes), limits.image_pixels, core_s])
    return LENGTH.pack(len(payload)) + payload


def _decode_request(payload: bytes) -> tuple[Work, PolicyLimits, float]:
    body, kinds, listed, changes, pixels, core_s = cbor2.loads(payload)
    transforms = tuple(_transform(kind, each) for kind, each in zip(kinds, listed, strict=True))
    return Work(body, transforms, changes), PolicyLimits(image_pixels=pixels), core_s


def _transform(is_compression: bool, told: Any) -> Transform:  # noqa: ANN401, FBT001 # as CBOR has it
    if not is_compression:
        return Projection(tuple(told))
    level, width, height, pixels, names = told
    return Compression(Level(level), width, height, pixels, tuple(names))


def _answer(payload: bytes) -> tuple[int, bytes]:
    work, limits, core_s = _decode_request(payload)
    _end_after(core_s)
    try:
        return 0, perform(work, limits)
    except TransformError as error:
        return 1 + FAULTS.index(error.fault), b""
    except MemoryError:
        return 1 + FAULTS.index(Fault.PIXELS), b""
    except Exception:  # noqa: BLE001 # the broker must be answered, whatever it was
        return 1 + FAULTS.index(Fault.DECODER), b""
    finally:
        _end_after(None)


def _end_after(core_s: float | None) -> None:
    """Set the kernel's timer that ends this process after *core_s* seconds of core time; None clears it."""
    if OUT_OF_TIME is None:
        return
    if core_s is not None and core_s <= 0:
        os.kill(os.getpid(), OUT_OF_TIME)
    signal.setitimer(signal.ITIMER_PROF, core_s or 0.0)


def _confine() -> None:
    """Drop the rights that no transform needs: more memory, opening files, starting processes, and being root."""
    load_decoders()  # before opening files is forbidden
    try:
        import resource  # not on every platform
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        resource.setrlimit(limit, (0, 0))
    if os.geteuid() == 0:  # limits of processes do not bind root
        with suppress(OSError):  # a container may forbid it
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)


def _serve(source: BinaryIO, target: BinaryIO) -> None:
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        status, body = _answer(source.read(LENGTH.unpack(head)[0]))
        target.write(LENGTH.pack(1 + len(body)) + bytes([status]) + body)
        target.flush()


def main() -> None:
    """Serve requests until standard input ends."""
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    _confine()
    target.write(b"\0")  # ready
    target.flush()
    _serve(sys.stdin.buffer, target)


if __name__ == "__main__":
    main()
