"""The commands of `python -m experiments`, one module each."""

from experiments.cli._app import app as app
from experiments.cli._app import main as main
