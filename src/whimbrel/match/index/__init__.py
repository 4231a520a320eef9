"""The packed content index: filters by the million, matched in microseconds, changed at any time."""
