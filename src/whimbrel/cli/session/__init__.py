"""``whimbrel session``: named sessions, which several devices share."""
