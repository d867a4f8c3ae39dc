"""Table 2."""

from running import run_study, shown


def test_a_substitute_has_a_row_beside_the_studys_own(store):
    own = "spherenorm_tiny:careful"
    study, _, results = run_study("t2", store, optimizers=("sgd", own))
    rows = {row[0]: row for row in shown(study.tables(results)[0])}
    assert list(rows) == ["residual + CutMix: SGD", f"{own} as residual + CutMix: SGDP"]
    assert rows["residual + CutMix: SGD"][4] == "77.69"
    assert not rows[f"{own} as residual + CutMix: SGDP"][4]
