"""Table D.3: batches that grow, at a fixed number of epochs."""

from __future__ import annotations

from collections.abc import Iterator

from spherenorm_experiments.claims import Claim, Of, Side, derive
from spherenorm_experiments.comparison import TunedComparison
from spherenorm_experiments.condition import Condition, Contender, Setup, arm_of
from spherenorm_experiments.paper.imagenet._photographs import (
    GLYPHS,
    WARM_UP,
    on_glyphs,
    on_imagenet,
)
from spherenorm_experiments.paper.shared.claims import projection
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.samples import advantage
from spherenorm_experiments.tables import Cell, printed

MICRO, LARGE_MICRO = 32, 256
"""Items of a micro-batch, over which BatchNorm takes its statistics: ours, and with `--data`."""

PAPER = {
    32: (4096, "72.41 73.75", 4.8),
    96: (8192, "69.74 71.36", 4.9),
    288: (16384, "63.79 66.89", 2.6),
}
"""Our batch; the paper's, with its accuracies of AdamW and AdamP; our spread."""

PAIR = ("AdamW", "AdamP")


def _condition(batch: int, theirs: int, numbers: str, spread: float) -> Condition:
    ours = {"micro_batches": batch // MICRO}
    large = {"micro_batches": theirs // LARGE_MICRO}
    return Condition(
        f"batch {batch}",
        "classification",
        on_glyphs("resnet50", regime=ours, batch_size=batch),
        on_imagenet("resnet50", regime=large, epochs=100, batch_size=theirs),
        tiers={"smoke": Setup(fields={"batch_size": 256}), "small": None},
        theirs=f"ResNet-50, ImageNet, batch {theirs // 1024}k",
        paper={"accuracy": dict(zip(PAIR, printed(numbers), strict=True))},
        cites=says("d3.table"),
        spread=spread,
    )


CONDITIONS = tuple(_condition(batch, *row) for batch, row in PAPER.items())
ADAMW = Contender("AdamW", fixed={"weight_decay": 1e-3}, paper={"lr": 1e-3, "weight_decay": 1e-4})
ADAMP = Contender("AdamP", fixed={"weight_decay": 1e-5}, paper={"lr": 1e-3, "weight_decay": 1e-6})


def _of_batches() -> Iterator[Claim]:
    small, *_, large = CONDITIONS
    grown, begun = (
        derive(advantage, _score(condition, "AdamP"), _score(condition, "AdamW"))
        for condition in (large, small)
    )
    yield Claim(
        "gain-grows",
        f"AdamP's gain in accuracy is larger at {large.label} than at {small.label}",
        grown, ">", begun, cites=says("d3.greater"), unit="pp", equivalent=1.0,
        paper=Cell(3.10 - 1.34, "+.2f"), spread=5.4,
    )  # fmt: skip
    yield Claim(
        "adamw-falls", f"AdamW's accuracy falls from {small.label} to {large.label}",
        _score(small, "AdamW"), ">", _score(large, "AdamW"), cites=says("d3.decrease"),
        unit="pp", paper=Cell(72.41 - 63.79, "+.2f"),
    )  # fmt: skip


def _score(condition: Condition, name: str) -> Side:
    return Of(arm_of(condition, name), "test")


DEPARTURES = (
    *GLYPHS,
    WARM_UP,
    ("network", "ResNet-50", "three bottleneck blocks", "a small machine"),
    ("batch", "4k, 8k, 16k: 31,000 to 8,000 steps", "32, 96, 288: 180 to 21 steps",
     "a small machine"),
    ("micro-batches", "not given", "of 32 (of 21 or 22 in every seventh batch of 288, the rest "
     "of an epoch); with --data of 256", "BatchNorm sees one of them"),
    ("learning rate", "not given", "tuned; with --data 0.001",
     "equal tuning for every optimizer"),
    ("length", "100 epochs", "3 epochs", "a small machine"),
)  # fmt: skip

D3 = TunedComparison(
    "d3",
    """Table D.3: large-batch training

    All batches see the data equally often, so that a batch three times as large has a third of the
    steps. Gradients of micro-batches of one size add up, so that BatchNorm is the same in all, but
    for the last batch of an epoch.
    """,
    baseline=ADAMW,
    contenders=[ADAMP],
    tune={"lr": [1e-2, 2e-2, 4e-2, 8e-2]},
    on=CONDITIONS,
    claims=[*projection(CONDITIONS, (ADAMW, ADAMP)), *_of_batches()],
    first_seed=1300,
    departures=DEPARTURES,
)
