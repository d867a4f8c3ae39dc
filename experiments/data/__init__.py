"""Data sets: a file for each official layout on disk, and for each generator of embedded data."""

from experiments.data._layout import FOLDER as FOLDER
from experiments.data._layout import Layout as Layout
from experiments.data._layout import checked as checked
from experiments.data._layout import data_folder as data_folder
from experiments.data._layout import layouts as layouts
from experiments.data._layout import use_folder as use_folder
