"""vlarge trains Vision-Language-Action robot models from one laptop to a thousand GPUs."""

__version__ = "0.1.0"
