"""Questions of our own: weight decay in equilibrium, the invariance test, matched steps."""

STUDIES = {
    "detector": "detector:Detector",
    "equilibrium": "equilibrium:EquilibriumStudy",
    "matched-step": "matched_step:MatchedStep",
}
TASKS = {"mlp": "mlp:Mlp"}
