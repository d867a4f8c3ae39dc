"""Many runs: requests, the trials of a plan, and rounds of runs until the studies are done."""

from experiments.campaign._campaign import Campaign as Campaign
from experiments.campaign._campaign import Outcomes as Outcomes
from experiments.campaign._campaign import Planned as Planned
from experiments.campaign._campaign import StudyError as StudyError
from experiments.campaign._requests import Request as Request
from experiments.campaign._requests import RequestWarning as RequestWarning
from experiments.campaign._requests import read_requests as read_requests
from experiments.campaign._trials import apply_plan as apply_plan
