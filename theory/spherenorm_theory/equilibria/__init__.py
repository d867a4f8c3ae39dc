"""Equilibria: the norm at which decay and growth balance, and the turn per step there."""
