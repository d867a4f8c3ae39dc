"""Imported by the parent of the tests' child processes: one run imports everything that torch imports late."""

import tempfile

from spherenorm_tiny import tiny_spec

from experiments.runner import execute

with tempfile.TemporaryDirectory() as root:
    execute(tiny_spec(epochs=1), root)
