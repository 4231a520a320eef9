"""Hospital wards that publish: the monitors of a floor, and an intensive care unit with electrocardiograms."""
