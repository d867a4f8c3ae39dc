"""The report: one self-contained page, a section for each study under each setting."""

from spherenorm_experiments.report.page._drawings import DRAWINGS as DRAWINGS
from spherenorm_experiments.report.page._drawings import require_chrome as require_chrome
from spherenorm_experiments.report.page._drawings import write_drawings as write_drawings
from spherenorm_experiments.report.page._findings import findings as findings
from spherenorm_experiments.report.page._report import write_report as write_report
from spherenorm_experiments.report.page._results import results_pages as results_pages
from spherenorm_experiments.report.page._results import write_results as write_results
from spherenorm_experiments.report.page._sections import Section as Section
from spherenorm_experiments.report.page._sections import groups as groups
from spherenorm_experiments.report.page._sections import names_of as names_of
from spherenorm_experiments.report.page._sections import sections as sections
from spherenorm_experiments.report.page._thirteen import across as across
from spherenorm_experiments.report.page._thirteen import thirteen_table as thirteen_table
