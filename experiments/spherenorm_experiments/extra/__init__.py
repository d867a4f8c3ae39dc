"""Questions of our own: weight decay in equilibrium, and matched steps."""

STUDIES = {
    "equilibrium": "equilibrium:EquilibriumStudy",
    "matched-step": "matched_step:MatchedStep",
}
TASKS = {"mlp": "mlp:Mlp"}
