"""The sessions of a busy node in groups, whose events several tasks fold at once."""

__all__: list[str] = []
