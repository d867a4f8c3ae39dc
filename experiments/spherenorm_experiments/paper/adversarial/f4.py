"""Figure 4 and Table E.2: adversarial training under four threat models."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from spherenorm_experiments.claims import Claim, Of, Side, derive
from spherenorm_experiments.comparison import TunedComparison
from spherenorm_experiments.condition import Condition, Contender, Setup, arm_of
from spherenorm_experiments.paper.shared.claims import mean_over_conditions, of_metric, projection
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.results import Result, Results, metric_on_test
from spherenorm_experiments.samples import Sample, paired_values
from spherenorm_experiments.tables import printed

WIDE = {"data_set": "cifar10", "depth": 34, "width": 10, "stem": 16}
FIELDS = {"epochs": 200, "batch_size": 128, "schedule": "step-50-75"}

PIXEL_STEP = 2 / 255
"""The length of a step of Madry et al. on CIFAR-10; the paper gives none."""


def _paper(**metrics: str) -> Mapping[str, Mapping[str, Decimal]]:
    """The paper's numbers of Adam and AdamP, by metric."""
    return {
        name.replace("_", " "): dict(zip(("Adam", "AdamP"), printed(numbers), strict=True))
        for name, numbers in metrics.items()
    }


def _condition(
    label: str,
    theirs: str,
    embedded: Mapping[str, Any],
    real: Mapping[str, Any],
    paper: Mapping[str, Mapping[str, Decimal]],
    spread: float,
) -> Condition:
    return Condition(
        label,
        "adversarial",
        embedded,
        Setup({**WIDE, **real}, fields=FIELDS),
        tiers={"smoke": Setup({"stem": 4})},
        theirs=f"WRN-34-10, {theirs}",
        benchmark="CIFAR-10 attacked",
        paper=paper,
        cites=says("f4.table"),
        spread=spread,
    )


CONDITIONS = (
    _condition(
        "linf 8/255",
        "linf 4/255, n = 10",
        {"radius": 8 / 255, "harder_radius": 16 / 255, "harder_steps": 4},
        {"radius": 4 / 255, "steps": 10, "step": PIXEL_STEP, "harder_radius": 8 / 255,
         "harder_steps": 20, "test_step": PIXEL_STEP},
        _paper(attacked_accuracy="56.58 66.28", clean_accuracy="80.12 89.85",
               harder_attacked_accuracy="29.00 35.76"),
        2.7,
    ),
    _condition(
        "l2 1/2",
        "l2 80/255, n = 10",
        {"norm": "l2", "radius": 0.5},
        {"norm": "l2", "radius": 80 / 255, "steps": 10},
        _paper(attacked_accuracy="70.33 83.59", clean_accuracy="84.14 93.46"),
        1.4,
    ),
    _condition(
        "linf 16/255",
        "linf 8/255, n = 7, tested with n = 20",
        {"radius": 16 / 255, "test_steps": 4},
        {"radius": 8 / 255, "steps": 7, "step": PIXEL_STEP, "test_steps": 20},
        _paper(attacked_accuracy="39.48 42.42", clean_accuracy="69.76 85.74"),
        11.0,
    ),
)  # fmt: skip
DECAY = {"weight_decay": 2e-4}
ADAM, ADAMP = (
    Contender(name, fixed=DECAY, paper={"lr": 0.01, **DECAY}) for name in ("Adam", "AdamP")
)


def _of_metrics_and_speed() -> Iterator[Claim]:
    for metric in ("clean accuracy", "harder attacked accuracy"):
        for condition in CONDITIONS:
            if metric in condition.paper:
                yield of_metric(condition, metric, ADAM, ADAMP)
    gaps = [
        derive(paired_values, *(_accuracy(condition, name, metric) for name in ("AdamP", "Adam")))
        for condition in CONDITIONS[:2]
        for metric in ("attacked accuracy", "clean accuracy")
    ]
    yield Claim(
        "gap",
        "AdamP's accuracy is more than 9.3 points higher: the mean over attacked and clean "
        "accuracy in the two settings of Section 4.3",
        mean_over_conditions(*gaps), ">", 9.3, how="difference",
        cites=says("f4.gap"), unit="pp", performance=True,
        caveat="the paper's four gaps: 9.70, 9.73, 13.26, 9.32",
    )  # fmt: skip
    shares = (partial(_shares, condition=condition) for condition in CONDITIONS)
    yield Claim(
        "faster",
        "AdamP comes to Adam's last training loss in less than half of the steps of Adam: the "
        "median of the threat models",
        mean_over_conditions(*shares, function=statistics.median), "<", 0.5,
        cites=says("f4.faster"), limits=(0.0, 1.0), performance=True,
        caveat="1 for a run that does not come there",
    )  # fmt: skip


def _accuracy(condition: Condition, name: str, metric: str) -> Side:
    return Of(arm_of(condition, name), metric_on_test(metric), performance=True)


def _shares(results: Results, condition: Condition) -> Sample:
    """The share of AdamP's steps until its loss is at most the last of Adam's, by seed."""
    ours, theirs = (results.arm(arm_of(condition, name)) for name in ("AdamP", "Adam"))
    reached = {item.spec.seed: _last(item) for item in theirs.finished}
    known = ours.where(lambda item: item.spec.seed in reached)  # diverged ones count against
    return known.values(partial(_share_until, reached=reached), performance=True)


def _smoothed(item: Result) -> Any:
    """Means of the loss over an epoch, one for each step after the first epoch."""
    losses = [record["loss"] for record in item.metrics]
    window = min(item.summary["steps_per_epoch"], len(losses))
    return np.convolve(losses, np.full(window, 1 / window), mode="valid")


def _last(item: Result) -> float:
    return float(_smoothed(item)[-1])


def _share_until(item: Result, reached: Mapping[int, float]) -> float:
    """The share of a run's steps until its loss is at most that of the seed's other run."""
    smoothed = _smoothed(item)
    (there,) = np.nonzero(smoothed <= reached[item.spec.seed])
    skipped = len(item.metrics) - len(smoothed)
    return float((there[0] + 1 + skipped) / len(item.metrics)) if len(there) else 1.0


DEPARTURES = (
    ("data", "CIFAR-10", "640 glyphs of 12 x 12 pixels; other fonts in validation, and "
     "others in the test", "a small machine"),
    ("network", "WRN-34-10", "WRN-10-1 with half as many channels, 20,000 parameters",
     "a small machine"),
    ("threats", "linf 4/255 and 8/255, l2 80/255; 7 or 10 steps",
     "linf 8/255 and 16/255, l2 1/2; 2 steps", "glyphs are easier, and steps cost"),
    ("length of a step", "not given", "2.5 radius / steps; with --data 2/255 for linf, as "
     "Madry et al.", "for l2 along the normalized gradient; public copies of the code that the "
     "paper used step along its sign"),
    ("learning rate", "0.01", "tuned", "equal tuning"),
    ("length", "200 epochs of 50,000, steps at 1/2 and 3/4", "9 epochs of 640, cosine",
     "a small machine"),
    ("validation", "none", "200 glyphs of fonts that no other set has; with --data 1,000 training "
     "images are held out", "rates are not chosen on the test set"),
)  # fmt: skip

F4 = TunedComparison(
    "f4",
    """Figure 4 and Table E.2: adversarial training

    A wide residual network learns from images that PGD has changed against it, and is scored on
    attacked and on clean ones. The model of the first threat is also attacked twice as far, in
    twice as many steps, which is the second row of Table E.2. Figure 4 is the training loss.

    In a pre-activation network only the convolutions that feed BatchNorm alone are scale-invariant:
    half of the weights, not nearly all.
    """,
    baseline=ADAM,
    contenders=[ADAMP],
    tune={"lr": [0.01, 0.02, 0.04, 0.08]},
    on=CONDITIONS,
    claims=[*projection(CONDITIONS, (ADAM, ADAMP)), *_of_metrics_and_speed()],
    first_seed=400,
    departures=DEPARTURES,
)
