"""Contacts: which nodes can hear each other, from when until when; made from walks, read from traces, or drawn."""
