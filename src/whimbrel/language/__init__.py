"""The subscription language: filters and policies. Each text is parsed to a tree, which several backends can run."""

from whimbrel.language.codes import ErrorCode
from whimbrel.language.filters import Filter, parse
from whimbrel.language.printer import print_filter
from whimbrel.language.rewrites import normal_form

__all__ = ["ErrorCode", "Filter", "normal_form", "parse", "print_filter"]
