"""Which process is late, at what, for how long; and how a run ends and begins again."""
