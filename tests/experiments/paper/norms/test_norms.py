"""The studies of the small network: tables, pictures, and what a report shows of them."""

from running import shown

from spherenorm_experiments.analysis import Results
from spherenorm_experiments.study import Plan, find_study
from tests.experiments.fabricated import fabricated


def test_the_projected_optimizers_have_92_percent_of_the_steps():
    trials = find_study("h7").trials(Plan("small"), Results([]))
    steps = {trial.arm.settings["contender"]: trial.spec.epochs for trial in trials}
    assert steps["SGD"] == steps["AdamP"] == 240
    assert steps["SGDP, 92 %"] == steps["AdamP, 92 %"] == round(0.92 * 240)


def test_the_laws_of_momentum_stand_beside_the_numbers():
    """1 + 2 beta / (1 - beta) for heavy ball, and 1 with the projection."""
    norms = next(
        table for table in find_study("h6").tables(fabricated("h6", 0)) if "Norms" in table.title
    )
    column = list(map(str, norms.columns)).index("paper growth / steps²")
    laws = {row[0]: row[column] for row in shown(norms)}
    for beta in (0.5, 0.8, 0.9, 0.95, 0.975):
        assert float(laws[f"heavy ball: SGD, β = {beta:g}"]) == round(1 + 2 * beta / (1 - beta))
        assert laws[f"heavy ball: SGDP, β = {beta:g}"] == "1"
