"""A checkpoint as something that acts."""
