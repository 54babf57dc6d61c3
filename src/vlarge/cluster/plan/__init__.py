"""The scale planner (numpy only)."""
