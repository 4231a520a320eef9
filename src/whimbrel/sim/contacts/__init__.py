"""Contacts: intervals in which two nodes hear each other; computed from walks, read from traces, or drawn at random."""
