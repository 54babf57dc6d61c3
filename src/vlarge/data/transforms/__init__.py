"""What a policy's inputs and outputs go through, in training and in action alike, each with its inverse.

resize: pictures at training resolution. augment: what training changes in them. stages: a dataset's and a robot's
conventions; configure: those that a recipe asks for. normalise: scaled by statistics. preparation: all of it together,
as a checkpoint carries it.
"""

from vlarge.data.transforms.normalise import Normalizer
from vlarge.data.transforms.preparation import Preparation
from vlarge.data.transforms.resize import resize_frame, resize_with_pad
from vlarge.data.transforms.stages import Chain

__all__ = [
    "Chain",
    "Normalizer",
    "Preparation",
    "resize_frame",
    "resize_with_pad",
]
