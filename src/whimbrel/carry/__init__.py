"""Samples carried from device to device where there is no infrastructure (Campus++)."""
