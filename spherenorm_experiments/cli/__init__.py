"""The commands of `python -m spherenorm_experiments`, one module each."""

from spherenorm_experiments.cli._app import app as app
from spherenorm_experiments.cli._app import main as main
