"""Ended runs as something to look at: pictures and exports, and the page."""
