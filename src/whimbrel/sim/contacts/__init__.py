"""Contacts: who can hear whom, from when until when; made from walks, read from traces, or drawn."""
