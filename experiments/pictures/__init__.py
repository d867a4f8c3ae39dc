"""Pictures and exports of results: plotly figures, and tables as CSV, LaTeX and Markdown."""

from experiments.pictures._curves import curves as curves
from experiments.pictures._curves import lines as lines
from experiments.pictures._exports import FORMATS as FORMATS
from experiments.pictures._exports import claims_table as claims_table
from experiments.pictures._exports import to_csv as to_csv
from experiments.pictures._exports import to_latex as to_latex
from experiments.pictures._exports import to_markdown as to_markdown
from experiments.pictures._figures import DASHES as DASHES
from experiments.pictures._figures import Picture as Picture
from experiments.pictures._figures import add_band as add_band
from experiments.pictures._figures import add_crosses as add_crosses
from experiments.pictures._figures import color_of as color_of
from experiments.pictures._figures import drawn as drawn
from experiments.pictures._figures import empty_figure as empty_figure
from experiments.pictures._figures import rounded as rounded
from experiments.pictures._forest import forest as forest
from experiments.pictures._searches import Tries as Tries
from experiments.pictures._searches import best_scores as best_scores
from experiments.pictures._searches import profile as profile
from experiments.pictures._searches import tried as tried
from experiments.pictures._tensorboard import require_tensorboard as require_tensorboard
from experiments.pictures._tensorboard import write_events as write_events
