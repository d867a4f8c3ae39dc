"""Data sets: a file for each official layout on disk, and for each generator of embedded data."""

from spherenorm_experiments.data._layout import FOLDER as FOLDER
from spherenorm_experiments.data._layout import Layout as Layout
from spherenorm_experiments.data._layout import checked as checked
from spherenorm_experiments.data._layout import data_folder as data_folder
from spherenorm_experiments.data._layout import layouts as layouts
from spherenorm_experiments.data._layout import use_folder as use_folder
