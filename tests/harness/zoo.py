"""The rows of the zoo, each with an oracle; see `rows`. They are tested in `recipes/`."""

from __future__ import annotations

from torch.optim import Adam

from tests.harness import loops, zoo_loops
from tests.harness.rows import GRADIENT, REGULARIZED, Row


def _of(name: str, *, fewest: int = 0, **settings: object) -> Row:
    return Row(name, settings, getattr(zoo_loops, name), fewest=fewest)


DECAYED = {"lr": 0.02, "weight_decay": 0.1}
TURNED = {"lr": 0.02, "eps": 1e-3, "weight_decay": 0.1, "every": 2}
ZOO = [
    Row("aggmo", {"lr": 0.02}, loops.aggmo, scaled=GRADIENT),
    Row("qhm", {"lr": 0.02, "weight_decay": 0.02}, zoo_loops.qhm, scaled=REGULARIZED),
    _of("ademamix", **DECAYED),
    _of("grokfast", **DECAYED),
    Row("schedulefree_sgd", {"lr": 0.02, "weight_decay": 0.1}, zoo_loops.schedulefree_sgd,
        scaled=REGULARIZED),
    _of("schedulefree_adamw", **DECAYED, power=1.5),
    _of("schedulefree_adamc", lr=0.02, weight_decay=20.0),
    _of("lookahead_adamw", **DECAYED, every=2),
    _of("gpa_adamw", **DECAYED, memory=0.9),
    _of("emanesterov_adamw", **DECAYED),
    Row("amsgrad", {"lr": 0.02}, Adam, {"amsgrad": True, "weight_decay": None}),
    _of("adabelief", **DECAYED),
    _of("laprop", **DECAYED),
    _of("adopt", **DECAYED),
    _of("adan", **DECAYED),
    _of("mars_adamw", **DECAYED),
    _of("cautious_adamw", **DECAYED),
    _of("grams", **DECAYED),
    _of("stable_adamw", **DECAYED),
    _of("adam_mini", **DECAYED),
    _of("adafactor", **DECAYED),
    _of("came", **DECAYED),
    _of("prodigy", d0=1e-2, weight_decay=0.1),
    _of("dadapt_sgd", d0=1e-2),
    _of("signum", **DECAYED),
    _of("cautious_lion", **DECAYED),
    _of("mars_lion", **DECAYED),
    _of("soap", **TURNED, fewest=2),
    _of("soap", **TURNED, one_sided=True, fewest=2),
    Row("shampoo", {"lr": 0.02, "momentum": 0.9, "eps": 0.1, "weight_decay": 0.1, "every": 2},
        zoo_loops.shampoo, scaled=(("eps", 2),), fewest=2),
    _of("dion2", **DECAYED, fraction=0.5, fewest=2),
    _of("muoneq", lr=0.02, fewest=2),
    _of("muon2", **DECAYED, fewest=2),
    _of("adamuon", lr=0.02, fewest=2),
    Row("polargrad", {"lr": 0.02, "weight_decay": 0.1}, zoo_loops.polargrad, scaled=REGULARIZED,
        fewest=2),
    _of("rmnp", **DECAYED),
    _of("mano", lr=0.02, fewest=2),
    _of("rowfloor_muon", weight_decay=2.0, fewest=2),
    _of("hyperp", depth=12.0, tokens=3e10, batch=1e6, fewest=2),
    _of("fromage"),
    _of("nero"),
    _of("layca", lr=0.02, momentum=0.9),
    _of("hyperspherical"),
    Row("oblique_sgd", {"lr": 0.02}, zoo_loops.oblique_sgd, scaled=GRADIENT),
]  # fmt: skip
