"""Proofs of membership: those that a trigger needs, the open questions, and the given proofs (4.1.3, 5.4.1)."""
