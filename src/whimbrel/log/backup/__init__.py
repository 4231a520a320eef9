"""Backups: a copy of a living broker's data that is consistent, and is read back before it counts as a backup.

``manifest`` is the list of a backup's files and their checksums, ``making`` copies, ``restoring`` checks and lays down.
"""
