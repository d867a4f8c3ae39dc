"""Studies: one file per table or figure of the paper, and per question of our own."""

from spherenorm_experiments.studies._benchmark import Benchmark as Benchmark
from spherenorm_experiments.studies._comparing import Comparing as Comparing
from spherenorm_experiments.studies._comparing import parse_names as parse_names
from spherenorm_experiments.studies._comparing import parse_ranges as parse_ranges
from spherenorm_experiments.studies._comparison import Comparison as Comparison
from spherenorm_experiments.studies._lookup import find_study as find_study
from spherenorm_experiments.studies._lookup import name_of as name_of
from spherenorm_experiments.studies._lookup import study_classes as study_classes
from spherenorm_experiments.studies._plan import TIERS as TIERS
from spherenorm_experiments.studies._plan import Plan as Plan
from spherenorm_experiments.studies._setting import Conditions as Conditions
from spherenorm_experiments.studies._setting import Contender as Contender
from spherenorm_experiments.studies._setting import Setting as Setting
from spherenorm_experiments.studies._study import Study as Study
from spherenorm_experiments.studies._study import final_seeds as final_seeds
from spherenorm_experiments.studies._thirteen import thirteen_table as thirteen_table
