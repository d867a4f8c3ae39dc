"""Schedules: the factors at the paper's milestones."""

import pytest

from spherenorm_experiments.core import SCHEDULES


@pytest.mark.parametrize(
    ("name", "epochs", "milestones"),
    [
        ("step-50-75", 200, (100, 150)),
        ("step-25-50-75", 80, (20, 40, 60)),
        ("step-70-90", 100, (70, 90)),
    ],
)
def test_a_tenth_from_each_milestone_on(name, epochs, milestones):
    """Appendix E: at epochs 100 and 150 of 200; every 20 epochs of 80."""
    factor = SCHEDULES[name]
    for epoch in range(epochs):
        passed = sum(epoch >= milestone for milestone in milestones)
        assert factor(epoch / epochs) == pytest.approx(0.1**passed)


def test_the_rate_of_retrieval_is_halved_every_five_epochs():
    for epoch in range(60):
        assert SCHEDULES["halving"]((epoch + 0.5) / 60) == 0.5 ** (epoch // 5)
