"""Table D.1: robustness against bias."""

STUDIES = {"d1": "d1:D1"}
TASKS = {"debiasing": "debiasing:Debiasing"}
LAYOUTS = {"mnist": "mnist:LAYOUT", "nine-class": "nine_class:LAYOUT"}
