"""Table D.1: robustness against bias."""

STUDIES = {"d1": "d1:D1"}
TASKS = {"debiasing": "debiasing:Debiasing"}
LAYOUTS = {"mnist": "biased:MNIST", "nine-class": "biased:NINE_CLASS"}
