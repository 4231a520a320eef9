"""Unicast baselines on the same contacts: spray and wait, direct delivery, epidemic; and a theoretical prediction."""
