"""One episode to look at: a sheet of frames and curves, a film, or a recording for the Rerun viewer."""
