"""Streets: nodes of nearby groups over a simulated radio, standing or walking; the same cores, a made-up world."""
