"""``whimbrel key``: makes a pair of keys for publications and subscriptions (docs/explanation/keys.md).

Rule: a private key is written to a file that only its owner can read, and is never printed.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from whimbrel.errors import InvalidValueError
from whimbrel.model.keys import Scheme, fingerprint

__all__ = ["key"]

_SCHEMES = ", ".join(scheme.value for scheme in Scheme)
_BYTES = 32


def key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the private key is put; it must not exist.")],
    *,
    scheme: Annotated[str, typer.Option("--scheme", metavar="SCHEME", help=f"One of {_SCHEMES}.")] = "consumer",
) -> None:
    """Make a key: the private key goes to FILE, the public key is printed.

    --key-file of publish, subscribe and session subscribe takes FILE; the printed line is for the other side's --key.
    With the scheme consumer, publications carry the public key and only subscribers with FILE get them; with producer
    it is the other way round.

    Example: whimbrel key doctor.key
    """
    if scheme not in {each.value for each in Scheme}:
        raise InvalidValueError("--scheme", scheme, _SCHEMES)
    private = secrets.token_urlsafe(_BYTES)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(f"{scheme}:private:{private}\n")
    typer.echo(f"{scheme}:{fingerprint(private.encode())[0].hex()}")
