"""Rendezvous on the simulated radio: pairs, rooms, headsets, crowds and attackers, for the lab (Huang, chapter 5)."""
