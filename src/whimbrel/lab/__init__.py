"""Experiments that reproduce the papers' tables and figures: one file each, sweeps on Spark."""
