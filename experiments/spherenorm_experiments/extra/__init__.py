"""Questions of our own: weight decay in equilibrium, and matched steps."""

STUDIES = {
    "equilibrium": "equilibrium:EquilibriumStudy",
    "matched-step": "matched_step:MatchedStep",
}
TASKS = {
    "adversarial-given-steps": "given_steps:GivenAdversarial",
    "debiasing-given-steps": "given_steps:GivenDebiasing",
    "keywords-given-steps": "given_steps:GivenKeywords",
    "mlp": "mlp:Mlp",
}
