"""Scale planner, job launch, machine check."""
