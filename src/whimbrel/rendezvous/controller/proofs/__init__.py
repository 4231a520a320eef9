"""Proofs of membership: what a trigger needs proven, who is asked now, and what has been proven (4.1.3, 5.4.1)."""
