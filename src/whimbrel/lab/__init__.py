"""The papers' tables and figures, made again: one file each, sweeps on Spark."""
