"""Data sets: loaders of official layouts on disk, and generators of embedded data."""
