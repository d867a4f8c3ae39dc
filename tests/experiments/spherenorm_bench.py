"""A benchmark of two optimizers on the digits."""

from spherenorm_experiments.comparison import Arm, Comparison, Condition, Setup
from spherenorm_experiments.tables import parse_cells
from spherenorm_paper.shared.claims import projection
from spherenorm_paper.statements import says

PLAIN = Condition(
    "plain",
    "digits",
    Setup({"variant": "plain"}, fields={"epochs": 1, "batch_size": 128}),
    Setup({"variant": "residual"}, fields={"epochs": 100}),
    paper_setup="ResNet-18, ImageNet",
    benchmark="ImageNet",
    paper={"accuracy": dict(zip(("SGD", "SGDP"), parse_cells("70.47 70.70"), strict=True))},
    cites=says("t2.outperform"),
)
SGD = Arm("SGD", fixed={"momentum": 0.9}, paper={"lr": 0.1, "momentum": 0.9})
SGDP = Arm(
    "SGDP", fixed={"momentum": 0.9}, paper={"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-5}
)


def small_table(**changed):
    """The comparison, with these arguments in place of its own."""
    given = {
        "arms": [SGD, SGDP],
        "tune": {"lr": [0.01, 0.1]},
        "conditions": [PLAIN],
        "claims": projection([PLAIN], ("SGD", "SGDP")),
        "first_seed": 40,
        "seeds": {"smoke": 2, "small": 3, "full": 4},
    }
    about = "A small table: SGD and SGDP\n\nOn the digits."
    return Comparison("small-table", about, **{**given, **changed})


SMALL_TABLE = small_table()

TINY_TABLE = Comparison(
    "tiny-table",
    arms=["sgd", "sgdp"],
    tune={"lr": [0.03, 0.3]},
    conditions=[Condition("", "spherenorm_tiny:Tiny")],
)

OWN = Arm("careful", {"lr": [0.1, 0.2]}, recipe="spherenorm_tiny:careful")
TINY_MORE = TINY_TABLE.with_arms("tiny-more", OWN)
