"""Studies: one file per table or figure of the paper, and per question of our own."""

from experiments.studies._benchmark import Benchmark as Benchmark
from experiments.studies._comparing import Comparing as Comparing
from experiments.studies._comparing import parse_names as parse_names
from experiments.studies._comparing import parse_ranges as parse_ranges
from experiments.studies._comparison import Comparison as Comparison
from experiments.studies._lookup import find_study as find_study
from experiments.studies._lookup import name_of as name_of
from experiments.studies._lookup import study_classes as study_classes
from experiments.studies._plan import TIERS as TIERS
from experiments.studies._plan import Plan as Plan
from experiments.studies._setting import Conditions as Conditions
from experiments.studies._setting import Contender as Contender
from experiments.studies._setting import Setting as Setting
from experiments.studies._study import Study as Study
from experiments.studies._study import final_seeds as final_seeds
from experiments.studies._thirteen import thirteen_table as thirteen_table
