"""Wards that publish: the monitors of a hospital floor, and an intensive care unit with electrocardiograms."""
