"""A checkpoint as something that acts: `load.load_policy` reads one, `chunks.ChunkQueue` plays its chunks."""
