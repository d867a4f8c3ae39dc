"""Figures F.1 to F.6: norm and effective step size under weight decay and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from experiments.claims import Claim, paired, performance
from experiments.plots import Picture, color_of, curves, lines
from experiments.results import Results, Trial
from experiments.study import Plan, Study, Table, cell

__all__ = ["WeightDecay"]

SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {
        "recipe": "sgd",
        "reference": 1e-2,
        "setting": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    },
    "SGDP": {
        "recipe": "sgdp",
        "reference": 1e-2,
        "setting": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    },
    "AdamW": {"recipe": "adamw", "reference": 1e-1, "setting": {"lr": 0.01}},
    "AdamP": {"recipe": "adamp", "reference": 1e-1, "setting": {"lr": 0.01}},
}
PAIRS = (("SGD", "SGDP"), ("AdamW", "AdamP"))
LOW, HIGH = (0.0, 0.1, 1.0), (3.0, 10.0)
"""Relative to the reference; high ones with the cosine schedule only, as in the paper."""


class WeightDecay(Study):
    """Figures F.1 to F.6: weight decay holds the norm too, but everything then depends on its value

    SGD, SGDP, AdamW and AdamP under the step and the cosine schedule, with weight decay relative to a reference: 0, 0.1 and
    1 times it, and 3 and 10 times with the cosine (the paper's high weight decay). The paper's reference is the baseline's
    best value, 1e-4 for 500,000 steps; for our 234 steps it is 1e-2 (SGD) and 1e-1 (AdamW).
    """

    name = "weight-decay"

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        trials = []
        for label, chosen in SETTINGS.items():
            for schedule, relative in [
                (s, x) for s in ("step", "cosine") for x in (*LOW, *(HIGH if s == "cosine" else ()))
            ]:
                setting = {**chosen["setting"], "weight_decay": relative * chosen["reference"]}
                trials += self.seeded(
                    plan,
                    _arm(label, schedule, relative),
                    "digits",
                    chosen["recipe"],
                    setting,
                    schedule=schedule,
                )
        return trials

    def tables(self, results: Results) -> list[Table]:
        rows = []
        for schedule in ("step", "cosine"):
            for label in SETTINGS:
                for relative in (*LOW, *HIGH):
                    runs = results.arm(_arm(label, schedule, relative))
                    if runs:
                        numbers = (
                            runs.mean("norm_last"),
                            runs.mean("total_effective_step"),
                            runs.mean("test"),
                        )
                        failed = str(len(runs.diverged)) if runs.diverged else ""
                        shown = (
                            cell(number, f".{digits}f")
                            for number, digits in zip(numbers, (3, 2, 2), strict=True)
                        )
                        rows.append((label, schedule, f"{relative:g}", *shown, failed))
        columns = (
            "optimizer",
            "schedule",
            "relative wd",
            "last norm",
            "path on sphere",
            "accuracy",
            "diverged",
        )
        return (
            [Table("Every arm", columns, rows, "The paper shows curves only. Means over seeds.")]
            if rows
            else []
        )

    def pictures(self, results: Results) -> list[Picture]:
        pictures = []
        for figure, labels, schedule in (
            ("F.1", PAIRS[0], "step"),
            ("F.2", PAIRS[0], "cosine"),
            ("F.3", PAIRS[1], "step"),
            ("F.4", PAIRS[1], "cosine"),
        ):
            chosen = _arms(results, labels, (schedule,), LOW)
            pictures += _three(
                chosen, f"Figure {figure}: {' and '.join(labels)}, {schedule} schedule"
            )
        for figure, labels in (("F.5", PAIRS[0]), ("F.6", PAIRS[1])):
            chosen = _arms(results, labels, ("cosine",), (1.0, *HIGH))
            pictures += _three(
                chosen,
                f"Figure {figure}: {' and '.join(labels)} at high weight decay",
                log_norm=True,
            )
        pictures.append(_accuracy(results))
        return [picture for picture in pictures if picture.figure.data]

    def claims(self, results: Results) -> list[Claim]:
        source, claims = "Appendix F", []
        for base, ours in PAIRS:
            for schedule in ("step", "cosine"):
                growth = [_growth(results, label, schedule) for label in (ours, base)]
                text = f"Without weight decay {ours} grows its norm less than half as much as {base} ({schedule} schedule)"
                claims.append(
                    paired(text, growth[0], growth[1], "<", how="ratio", bound=0.5, source=source)
                )
        for base, ours in PAIRS:
            spread = [_spread(results, label, "norm_last", ratio=True) for label in (ours, base)]
            text = f"{ours}'s last norm depends less on weight decay than {base}'s: largest over smallest, 0 to 10 times the reference"
            claims.append(paired(text, spread[0], spread[1], "<", how="ratio", source=source))
        for base, ours in PAIRS:
            spread = [_spread(results, label, "test", ratio=False) for label in (ours, base)]
            text = f"{ours}'s accuracy depends less on weight decay than {base}'s: range over 0 to 10 times the reference"
            claims.append(paired(text, spread[0], spread[1], "<", source=source, unit="pp"))
        for base, _ in PAIRS:
            high, usual = (
                results.arm(_arm(base, "cosine", relative)).values("norm_last")
                for relative in (10.0, 1.0)
            )
            text = f"High weight decay shrinks {base}'s norm further (10 times the reference against once)"
            claims.append(paired(text, high, usual, "<", how="ratio", source="Appendix F.1"))
            scores = [
                results.arm(_arm(base, "cosine", relative)).values("test")
                for relative in (1.0, 10.0)
            ]
            text = (
                f"High weight decay does not improve {base}'s accuracy: reference minus 10 times it"
            )
            claims.append(performance(text, *scores, source="Appendix F.1", unit="pp"))
        return claims


def _three(chosen: Results, name: str, *, log_norm: bool = False) -> list[Picture]:
    """What each of the paper's figures shows."""
    return [
        curves(chosen, "norm", "norm ‖w‖", f"{name}: norm.", log_y=log_norm),
        curves(
            chosen,
            "effective_step",
            "effective step ‖Δŵ‖",
            f"{name}: effective step size.",
            log_y=True,
            smooth=18,
        ),
        curves(
            chosen, "validation", "validation accuracy (%)", f"{name}: accuracy after each epoch."
        ),
    ]


def _arm(label: str, schedule: str, relative: float) -> str:
    return f"{label}, {schedule}, wd × {relative:g}"


def _arms(
    results: Results, labels: tuple[str, ...], schedules: tuple[str, ...], decays: tuple[float, ...]
) -> Results:
    wanted = {
        _arm(label, schedule, relative)
        for label in labels
        for schedule in schedules
        for relative in decays
    }
    return results.where(lambda item: item.arm in wanted)


def _growth(results: Results, label: str, schedule: str) -> dict[int, float]:
    return results.arm(_arm(label, schedule, 0.0)).values(
        lambda item: item.summary["norm_last"] / item.summary["norm_start"] - 1
    )


def _spread(results: Results, label: str, key: str, *, ratio: bool) -> dict[int, float]:
    """Over the weight decays under the cosine schedule: largest over, or minus, smallest, for seeds that finished them all."""
    arms = [results.arm(_arm(label, "cosine", relative)).values(key) for relative in (*LOW, *HIGH)]
    shared: set[int] = set.intersection(*(set(arm) for arm in arms))
    ends = {
        seed: (max(arm[seed] for arm in arms), min(arm[seed] for arm in arms))
        for seed in sorted(shared)
    }
    return {seed: high / low if ratio else high - low for seed, (high, low) in ends.items()}


def _accuracy(results: Results) -> Picture:
    series: dict[str, tuple[list[float], list[float]]] = {}
    for label in SETTINGS:
        means = [(x, results.arm(_arm(label, "cosine", x)).mean("test")) for x in (*LOW, *HIGH)]
        known = [(x, mean) for x, mean in means if not math.isnan(mean)]
        # A logarithmic axis has no 0; it stands at a hundredth of the reference.
        series[label] = ([max(x, 0.01) for x, _ in known], [mean for _, mean in known])
    colors: Mapping[str, str] = {
        label: color_of(chosen["recipe"]) for label, chosen in SETTINGS.items()
    }
    caption = "Test accuracy against weight decay relative to the reference (none is drawn at 0.01), cosine schedule."
    return lines(
        series,
        "relative weight decay",
        "accuracy (%)",
        caption,
        colors,
        log_x=True,
        mode="lines+markers",
    )
