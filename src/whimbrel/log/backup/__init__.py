"""Backups: consistent copies of a broker's data, made while the broker runs or not.

``manifest`` lists a backup's files and their checksums. ``making`` copies the files. ``restoring`` checks a backup and
copies its files to a new data directory.
"""
