"""Whimbrel: publish/subscribe for devices that move, sleep and disappear."""

from whimbrel.errors import FilterError, InvalidInputError, WhimbrelError
from whimbrel.language import Filter

__all__ = ["Filter", "FilterError", "InvalidInputError", "WhimbrelError", "__version__"]

__version__ = "0.1.0.dev0"
