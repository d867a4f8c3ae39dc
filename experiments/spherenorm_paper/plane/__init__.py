"""Figures 1 and 2: descent in the plane, on a loss of the direction alone."""

STUDIES = {"f1": "f1:F1", "f2": "f2:F2"}
