"""A study, the comparisons that studies are made of, and the campaign that runs them."""

from spherenorm_experiments.study._campaign import Campaign as Campaign
from spherenorm_experiments.study._campaign import StudyError as StudyError
from spherenorm_experiments.study._campaign import estimate as estimate
from spherenorm_experiments.study._campaign import time_steps as time_steps
from spherenorm_experiments.study._comparing import Comparing as Comparing
from spherenorm_experiments.study._comparing import comparison_of as comparison_of
from spherenorm_experiments.study._comparing import find_study as find_study
from spherenorm_experiments.study._comparing import parse_names as parse_names
from spherenorm_experiments.study._comparing import parse_overrides as parse_overrides
from spherenorm_experiments.study._comparing import parse_ranges as parse_ranges
from spherenorm_experiments.study._comparing import study_classes as study_classes
from spherenorm_experiments.study._comparison import TunedComparison as TunedComparison
from spherenorm_experiments.study._comparison import score_claim as score_claim
from spherenorm_experiments.study._condition import THIRTEEN as THIRTEEN
from spherenorm_experiments.study._condition import Condition as Condition
from spherenorm_experiments.study._condition import Contender as Contender
from spherenorm_experiments.study._condition import Setup as Setup
from spherenorm_experiments.study._condition import arm_of as arm_of
from spherenorm_experiments.study._plan import TIERS as TIERS
from spherenorm_experiments.study._plan import Plan as Plan
from spherenorm_experiments.study._plan import Request as Request
from spherenorm_experiments.study._plan import read_requests as read_requests
from spherenorm_experiments.study._shown import growth as growth
from spherenorm_experiments.study._shown import invariant_share as invariant_share
from spherenorm_experiments.study._study import Study as Study
from spherenorm_experiments.study._trials import apply_plan as apply_plan
