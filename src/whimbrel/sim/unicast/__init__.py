"""Unicast baselines on the same contacts: spray and wait, direct delivery, epidemic; and what theory says of them."""
