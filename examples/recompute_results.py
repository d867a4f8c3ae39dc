"""Recompute a number of a committed page from its rows, with pandas and scipy alone.

    python examples/recompute_results.py

The page `experiments/results/t1-evidence.md` says how much further SGDP travels on the sphere than
SGD. The file `rows.parquet` beside it has every run behind the pages: a row has the study, the
condition, the arm and the seed as columns, and the settings ("spec") and numbers ("summary") of
the run as JSON. `spherenorm results --rows` writes such a file for any store.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

RESULTS = Path(__file__).parents[1] / "experiments" / "results"

rows = pd.read_parquet(RESULTS / "rows.parquet")
rows = rows[(rows.study == "t1") & (rows.condition == "digits")]
specs, numbers = rows.spec.map(json.loads), rows.summary.map(json.loads)
rows["lr"] = [spec["hyper_parameters"]["lr"] for spec in specs]
rows["path"] = [summary["path"] for summary in numbers]

# One row for each seed and learning rate, one column for each optimizer.
paths = rows.pivot(index=["seed", "lr"], columns="arm", values="path")[["SGD", "SGDP"]].dropna()
ratio = (paths["SGDP"] / paths["SGD"]).groupby("seed").median()

# Ratios are averaged as logarithms; Student's 95 % interval is that of the page.
logs = np.log(ratio)
low, high = np.exp(stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs)))
p = stats.ttest_1samp(logs, 0).pvalue
interval = f"× {np.exp(logs.mean()):.3g} [{low:.3g}, {high:.3g}]"

page = (RESULTS / "t1-evidence.md").read_text(encoding="utf-8")
line = next(line for line in page.splitlines() if "t1.path.sgdp" in line)
print(f"recomputed from {len(ratio)} seeds: {interval}, p = {p:.2g} before Holm's procedure")
print(f"the page has the same interval: {interval in line}")
