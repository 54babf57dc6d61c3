"""Where a run's numbers go, and what they say of the time it took."""
