"""Turns the order of samples into batches that are ready before the trainer asks."""
