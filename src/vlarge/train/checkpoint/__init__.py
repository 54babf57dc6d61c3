"""Checkpoints of a run: sharded, written beside the training, verified, and good or absent (law T3)."""

from vlarge.train.checkpoint.checkpoints import Checkpoints as Checkpoints
from vlarge.train.checkpoint.checkpoints import Export as Export
from vlarge.train.checkpoint.reading import Reader as Reader
