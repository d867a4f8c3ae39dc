"""Questions of our own: the equilibrium of weight decay, and the test of scale invariance."""

STUDIES = {"detector": "detector:Detector", "equilibrium": "equilibrium:EquilibriumStudy"}
TASKS = {"mlp": "mlp:Mlp"}
