"""Streets: nodes of nearby groups, parked or moving, over a simulated radio; they run the real cores."""
