"""Table 5: language modelling."""

STUDIES = {"t5": "t5:T5"}
TASKS = {"language": "language:Language"}
LAYOUTS = {"wikitext-103": "language:LAYOUT"}
