"""A checkpoint as something that acts."""

from vlarge.policy.chunks import ChunkQueue
from vlarge.policy.load import load_policy

__all__ = ["ChunkQueue", "load_policy"]
