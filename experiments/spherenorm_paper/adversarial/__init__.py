"""Figure 4 and Table E.2: adversarial training."""

STUDIES = {"f4": "f4:F4"}
TASKS = {"adversarial": "adversarial:Adversarial"}
LAYOUTS = {"cifar10": "adversarial:LAYOUT"}
