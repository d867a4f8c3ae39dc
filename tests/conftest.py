import os

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")
torch.set_num_threads(1)
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start; two workers run


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
