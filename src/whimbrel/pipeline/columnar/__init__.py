"""The columnar hold: computes the deliveries of plain sessions over flat arrays, for batch runs.

A session is *plain* if nothing of MQTT, no share and no policy makes a difference to it (``plain_sessions``). It is a
fast twin of ``hold.rules``, about ten times as fast.
Rule: it makes the rows that the hold makes (``test_columnar_hold``); ``BatchJob.is_columnar`` turns it off.
"""
