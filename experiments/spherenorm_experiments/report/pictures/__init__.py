"""Pictures and exports of results: plotly figures, and tables as CSV, LaTeX and Markdown."""

from spherenorm_experiments.report.pictures._exports import FORMATS as FORMATS
from spherenorm_experiments.report.pictures._exports import claims_table as claims_table
from spherenorm_experiments.report.pictures._exports import to_csv as to_csv
from spherenorm_experiments.report.pictures._exports import to_latex as to_latex
from spherenorm_experiments.report.pictures._exports import to_markdown as to_markdown
from spherenorm_experiments.report.pictures._exports import to_parquet as to_parquet
from spherenorm_experiments.report.pictures._figures import DASHES as DASHES
from spherenorm_experiments.report.pictures._figures import Picture as Picture
from spherenorm_experiments.report.pictures._figures import add_band as add_band
from spherenorm_experiments.report.pictures._figures import add_crosses as add_crosses
from spherenorm_experiments.report.pictures._figures import color_of as color_of
from spherenorm_experiments.report.pictures._figures import drawn as drawn
from spherenorm_experiments.report.pictures._figures import empty_figure as empty_figure
from spherenorm_experiments.report.pictures._figures import rounded as rounded
from spherenorm_experiments.report.pictures._forest import forest as forest
from spherenorm_experiments.report.pictures._lines import best_scores as best_scores
from spherenorm_experiments.report.pictures._lines import curves as curves
from spherenorm_experiments.report.pictures._lines import lines as lines
from spherenorm_experiments.report.pictures._lines import points as points
from spherenorm_experiments.report.pictures._lines import tried as tried
from spherenorm_experiments.report.pictures._marks import finished as finished
