"""Figures 3, H.1, G.1 and G.2: descents on a sphere."""

STUDIES = {"f3": "f3:F3"}
