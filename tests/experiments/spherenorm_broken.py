"""A module that cannot be imported."""

mine = 1 / 0
