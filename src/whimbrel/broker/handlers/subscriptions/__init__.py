"""Subscriptions: what SUBSCRIBE and UNSUBSCRIBE do."""
