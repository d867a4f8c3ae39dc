"""Many runs: requests, the trials of a plan, and rounds of runs until the studies are done."""

from spherenorm_experiments.campaign._campaign import Campaign as Campaign
from spherenorm_experiments.campaign._campaign import Outcomes as Outcomes
from spherenorm_experiments.campaign._campaign import Planned as Planned
from spherenorm_experiments.campaign._campaign import StudyError as StudyError
from spherenorm_experiments.campaign._requests import Request as Request
from spherenorm_experiments.campaign._requests import RequestWarning as RequestWarning
from spherenorm_experiments.campaign._requests import read_requests as read_requests
from spherenorm_experiments.campaign._trials import apply_plan as apply_plan
