"""The past: who heard what was published, from where devices were then; over a log, not live."""
