"""Token-major (packed) models; every folder has the same files."""
