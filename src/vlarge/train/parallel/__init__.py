"""One file per mesh axis."""
