"""Imported by the parent of the tests' child processes: a run imports what torch imports late."""

import tempfile

from spherenorm_tiny import tiny_spec

from spherenorm_experiments.execute import execute_spec

with tempfile.TemporaryDirectory() as root:
    execute_spec(tiny_spec(epochs=1), root)
