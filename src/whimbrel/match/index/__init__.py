"""The packed content index: matches millions of filters in microseconds, and accepts changes at any time."""
