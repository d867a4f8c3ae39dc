"""A benchmark of two contenders on the digits."""

from spherenorm_experiments.analysis import printed
from spherenorm_experiments.study._benchmark import Benchmark
from spherenorm_experiments.study._setting import Conditions, Contender, Setting


class SmallTable(Benchmark):
    """A small table: SGD and SGDP

    On the digits.
    """

    name = "small-table"
    first_seed = 40
    seeds = {"smoke": 2, "small": 3, "full": 4}  # noqa: RUF012
    smoke_rates = 2
    table = (
        Setting(
            "plain",
            "ResNet-18, ImageNet",
            "ImageNet",
            "digits",
            Conditions({"variant": "plain"}, fields={"epochs": 1, "batch_size": 128}),
            Conditions({"variant": "residual"}, fields={"epochs": 100}),
            {"accuracy": dict(zip(("SGD", "SGDP"), printed("70.47 70.70"), strict=True))},
            "t2.outperform",
        ),
    )
    contenders = (
        Contender("SGD", (0.01, 0.1), {"momentum": 0.9}, {"lr": 0.1, "momentum": 0.9}),
        Contender("SGDP", (0.01, 0.1), {"momentum": 0.9},
                  {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-5}),
    )  # fmt: skip
    pairs = (("SGD", "SGDP"),)
