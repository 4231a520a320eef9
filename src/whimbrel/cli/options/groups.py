"""Option groups: options that several commands share, as frozen dataclasses that commands take as one argument.

A field of the dataclass is one option, in Typer's notation: ``Annotated[str, typer.Option("--name")]``. Typer itself
supports only options of single commands; ``with_option_groups`` gives it a command with all options, one by one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

__all__ = ["with_option_groups"]


def with_option_groups(**defaults: object) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Allow dataclasses of options as arguments of a command; *defaults* replace those of the dataclass."""
    return lambda command: _spread(command, defaults)


def _is_group(annotation: object) -> bool:
    return isinstance(annotation, type) and is_dataclass(annotation)


def _spread(command: Callable[..., None], defaults: dict[str, object]) -> Callable[..., None]:
    own = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, type[Any]] = {each.name: each.annotation for each in own if _is_group(each.annotation)}
    spread = [each for each in own if each.name not in groups]
    for group in groups.values():
        types = get_type_hints(group, include_extras=True)
        for option in fields(group):
            default = defaults.get(option.name, option.default)
            spread.append(
                inspect.Parameter(
                    option.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if default is MISSING else default,
                    annotation=types[option.name],
                )
            )

    @functools.wraps(command)
    def run(**given: object) -> None:
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)})
        command(**given)

    del run.__wrapped__
    run.__signature__ = inspect.Signature(spread)  # type: ignore[attr-defined] # inspect, and so Typer, reads this
    run.__annotations__ = {each.name: each.annotation for each in spread}
    return run
