"""The trainer: step, optimizer, checkpoints, tracking."""
