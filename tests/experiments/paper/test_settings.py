"""The hyper-parameters of every set-up for the paper's data, row by row against the paper's text.

Lines are those of the paper's source, `adamp.tex` of arXiv 2006.08217. Where it is silent a study
has a departure, and the table a dash. Networks and metrics are in `test_on_disk.py`.
"""

import re

import pytest

from spherenorm_experiments.comparison import find_study, study_classes
from spherenorm_experiments.lookup import load_recipe
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Runs

HEAD = ("study", "condition", "arm", "lr", "decay", "momentum", "batch", "epochs", "schedule",
        "more", "tex")  # fmt: skip
TABLE = """
t1  digits   SGD                        0.1     0       0.9N       256    100  cosine         -                     373, 888, 893
t1  digits   SGD, wd 1e-6               0.1     1e-6    0.9N       256    100  cosine         -                     374, 888, 893
t1  digits   SGD, wd 1e-5               0.1     1e-5    0.9N       256    100  cosine         -                     375, 888, 893
t1  digits   SGD, wd 1e-4               0.1     1e-4    0.9N       256    100  cosine         -                     376, 888, 893
t1  digits   SGDP                       0.1     0       0.9N       256    100  cosine         -                     377, 888, 893
t1  digits   SGDP, wd 1e-6(, .*)?       0.1     1e-6    0.9N       256    100  cosine         -                     378, 888, 893
t1  digits   SGDP, wd 1e-5(, .*)?       0.1     1e-5    0.9N       256    100  cosine         -                     379, 888, 893
t1  digits   Adam[WP]                   0.001   0       0.9/0.999  256    100  cosine         -                     380-381, 889, 893
t1  tagging  Adam[WP]                   0.0001  0       0.9/0.999  16     100  cosine         -                     383-384, 962
t2  ResNet-[15].         SGD            0.1     1e-4    0.9N       256    100  cosine         -                     888, 893
t2  ResNet-[15].         SGDP           0.1     1e-5    0.9N       256    100  cosine         -                     888, 893, 1020
t2  ResNet-[15].         Adam|AdamW     0.001   1e-4    0.9/0.999  256    100  cosine         -                     889, 893
t2  ResNet-[15].         AdamP          0.001   1e-6    0.9/0.999  256    100  cosine         -                     889, 893, 1043
t2  ResNet-50 . CutMix   SGD            0.1     1e-4    0.9N       256    150  cosine         cutmix=1.0            888, 893
t2  ResNet-50 . CutMix   SGDP           0.1     1e-5    0.9N       256    150  cosine         cutmix=1.0            888, 893, 1020
t2  ResNet-50 . CutMix   Adam|AdamW     0.001   1e-4    0.9/0.999  256    150  cosine         cutmix=1.0            889, 893
t2  ResNet-50 . CutMix   AdamP          0.001   1e-6    0.9/0.999  256    150  cosine         cutmix=1.0            889, 893, 1043
t2  MobileNetV2          SGD            0.1     1e-4    0.9N       1024   150  cosine         label_smoothing=0.1   888, 891, 893
t2  MobileNetV2          SGDP           0.1     1e-5    0.9N       1024   150  cosine         label_smoothing=0.1   888, 891, 893
t2  MobileNetV2          Adam|AdamW     0.001   1e-4    0.9/0.999  1024   150  cosine         label_smoothing=0.1   889, 891, 893
t2  MobileNetV2          AdamP          0.001   1e-6    0.9/0.999  1024   150  cosine         label_smoothing=0.1   889, 891, 893
t3  centernet.*          AdamP?         2.5e-4  1e-5    0.9/0.999  64     140  cosine         -                     899
t3  ssd.*                AdamP?         1e-4    1e-5    0.9/0.999  64     110  step-70-90     -                     900
t4  music tags           Adam[WP]       1e-4    0       0.9/0.999  16     100  cosine         -                     962
t4  keywords             Adam[WP]       1e-4    0       0.9/0.999  16     30   cosine         -                     962
t4  sound events         Adam[WP]       1e-4    0       0.9/0.999  16     30   cosine         -                     962
t4  .*                   Adam . SGD     1e-4    1e-4    0.9/0.999  16     200  constant       -                     959
t5  .*                   Adam[WP]       2.5e-4  0       0.9/0.999  60     17   cosine         clip_norm=0.25        -
t6  .*                   Adam[WP]       1e-4    0       0.9/0.999  120    60   halving        -                     979
f4  .*                   AdamP?         0.01    2e-4    0.9/0.999  128    200  step-50-75     -                     910
c1  plain                δ = .*         0.001   1e-6    0.9/0.999  256    100  cosine         -                     751, 889, 893, 1043
d1  digits, rho .*       AdamP?         0.001   1e-4    0.9/0.999  256    80   step-25-50-75  -                     940-941
d1  stripes, rho .*      AdamP?         0.001   1e-4    0.9/0.999  128    120  cosine         -                     940-941
d2  .*                   baseline       0.001   1e-4    0.9/0.999  512    400  cosine         warmup=5.0 label_smoothing=0.1 augmentation=randaugment stochastic_depth=0.2  -
d2  .*                   AdamP          0.001   1e-6    0.9/0.999  512    400  cosine         warmup=5.0 label_smoothing=0.1 augmentation=randaugment stochastic_depth=0.2  -
d3  batch 32             AdamW          0.001   1e-4    0.9/0.999  4096   100  cosine         micro_batches=16      823, 828, 889
d3  batch 32             AdamP          0.001   1e-6    0.9/0.999  4096   100  cosine         micro_batches=16      823, 828, 889
d3  batch 96             AdamW          0.001   1e-4    0.9/0.999  8192   100  cosine         micro_batches=32      823, 829, 889
d3  batch 96             AdamP          0.001   1e-6    0.9/0.999  8192   100  cosine         micro_batches=32      823, 829, 889
d3  batch 288            AdamW          0.001   1e-4    0.9/0.999  16384  100  cosine         micro_batches=64      823, 830, 889
d3  batch 288            AdamP          0.001   1e-6    0.9/0.999  16384  100  cosine         micro_batches=64      823, 830, 889
weight-decay  SGD, step          SGDP?, wd × 0                0.1    0     0.9N       256  100  step    -  888, 987, 1008
weight-decay  SGD, step          SGDP?, wd × 0\\.1             0.1    1e-5  0.9N       256  100  step    -  888, 992, 1008
weight-decay  SGD, step          SGDP?, wd × 1                0.1    1e-4  0.9N       256  100  step    -  888, 992, 1008
weight-decay  SGD, cosine        SGDP?, wd × 0                0.1    0     0.9N       256  100  cosine  -  888, 987, 1020
weight-decay  SGD, cosine        SGDP?, wd × 0\\.1(, .*)?      0.1    1e-5  0.9N       256  100  cosine  -  888, 992, 1020
weight-decay  SGD, (cosine|high decay)  SGDP?, wd × 1(, .*)?         0.1    1e-4  0.9N       256  100  cosine  -  888, 992, 1020, 1048, 1056
weight-decay  SGD, high decay    SGDP?, wd × 3                0.1    3e-4  0.9N       256  100  cosine  -  888, 1048, 1056
weight-decay  SGD, high decay    SGDP?, wd × 10               0.1    1e-3  0.9N       256  100  cosine  -  888, 1048, 1056
weight-decay  Adam, step         Adam[WP], wd × 0             0.001  0     0.9/0.999  256  100  step    -  889, 987, 1032
weight-decay  Adam, step         Adam[WP], wd × 0\\.1          0.001  1e-5  0.9/0.999  256  100  step    -  889, 992, 1032
weight-decay  Adam, step         Adam[WP], wd × 1             0.001  1e-4  0.9/0.999  256  100  step    -  889, 992, 1032
weight-decay  Adam, cosine       Adam[WP], wd × 0             0.001  0     0.9/0.999  256  100  cosine  -  889, 987, 1043
weight-decay  Adam, cosine       Adam[WP], wd × 0\\.1(, .*)?   0.001  1e-5  0.9/0.999  256  100  cosine  -  889, 992, 1043
weight-decay  Adam, (cosine|high decay)  Adam[WP], wd × 1(, .*)?      0.001  1e-4  0.9/0.999  256  100  cosine  -  889, 992, 1043, 1048, 1066
weight-decay  Adam, high decay   Adam[WP], wd × 3             0.001  3e-4  0.9/0.999  256  100  cosine  -  889, 1048, 1066
weight-decay  Adam, high decay   Adam[WP], wd × 10            0.001  1e-3  0.9/0.999  256  100  cosine  -  889, 1048, 1066
g1  -       SGD                         0.1     1e-4    0.9N       256    100  cosine         -                     888, 1169
g1  -       SGDP                        0.1     1e-5    0.9N       256    100  cosine         -                     888, 1020, 1169
g1  -       AdamW                       0.001   1e-4    0.9/0.999  256    100  cosine         -                     889, 1169
g1  -       AdamP                       0.001   1e-6    0.9/0.999  256    100  cosine         -                     889, 1043, 1169
h6  Nesterov  SGDP?, β = 0\\.5           0.1     0       0.5N       256    100  cosine         -                     888, 1293, 1309
h6  Nesterov  SGDP?, β = 0\\.8           0.1     0       0.8N       256    100  cosine         -                     888, 1293, 1310
h6  Nesterov  SGDP?, β = 0\\.9           0.1     0       0.9N       256    100  cosine         -                     888, 1293, 1311
h6  Nesterov  SGDP?, β = 0\\.95          0.1     0       0.95N      256    100  cosine         -                     888, 1293, 1312
h6  Nesterov  SGDP?, β = 0\\.975         0.1     0       0.975N     256    100  cosine         -                     888, 1293, 1313
h7  -|wide  SGD                         0.1     1e-4    0.9N       256    100  cosine         -                     888, 893, 1336-1337
h7  -|wide  SGDP, 92 %                  0.1     1e-5    0.9N       256    92   cosine         -                     888, 1020, 1320
h7  -|wide  SGDP                        0.1     1e-5    0.9N       256    100  cosine         -                     888, 893, 1020
h7  -|wide  AdamW                       0.001   1e-4    0.9/0.999  256    100  cosine         -                     889, 893, 1336-1337
h7  -|wide  AdamP, 92 %                 0.001   1e-6    0.9/0.999  256    92   cosine         -                     889, 1043, 1320
h7  -|wide  AdamP                       0.001   1e-6    0.9/0.999  256    100  cosine         -                     889, 893, 1043
h7  narrow  SGD                         0.1     1e-4    0.9N       1024   150  cosine         label_smoothing=0.1   888, 891, 893
h7  narrow  SGDP, 92 %                  0.1     1e-5    0.9N       1024   138  cosine         label_smoothing=0.1   888, 891, 1320
h7  narrow  SGDP                        0.1     1e-5    0.9N       1024   150  cosine         label_smoothing=0.1   888, 891, 893
h7  narrow  AdamW                       0.001   1e-4    0.9/0.999  1024   150  cosine         label_smoothing=0.1   889, 891, 893
h7  narrow  AdamP, 92 %                 0.001   1e-6    0.9/0.999  1024   138  cosine         label_smoothing=0.1   889, 891, 1320
h7  narrow  AdamP                       0.001   1e-6    0.9/0.999  1024   150  cosine         label_smoothing=0.1   889, 891, 893
"""  # noqa: E501
"""Condition and arm are patterns; momentum is Nesterov's (N), or Adam's two coefficients. The decay
of MobileNetV2 was searched (891), those of SGDP and AdamP elsewhere are ResNet-18's (1020, 1043):
departures say so."""

ROWS = [dict(zip(HEAD, re.split(r"  +", line), strict=True)) for line in TABLE.strip().split("\n")]
MORE = ("warmup", "micro_batches", "clip_norm", "label_smoothing", "augmentation",
        "stochastic_depth", "cutmix")  # fmt: skip
GRASSMANN = """
sgdg   0.1  0.1   0.01    0.2    1131
sgdg   0    0.1   0.01    0.2    1132
sgdg   0.1  None  0.01    0.2    1133
sgdg   0    0.1   0.1     2      1135
sgdg   0    0.1   0.005   0.1    1136
sgdg   0    0.1   0.1     0.1    1137
sgdg   0    0.1   0.3     0.3    1139
sgdg   0    0.1   0.03    0.03   1140
sgdg   0    0.1   0.01    0.01   1141
adamg  0.1  0.1   0.01    0.05   1152
adamg  0    0.1   0.01    0.05   1153
adamg  0.1  None  0.01    0.05   1154
adamg  0    0.1   0.001   0.005  1156
adamg  0    0.1   0.0002  0.001  1157
adamg  0    0.1   0.001   0.001  1158
adamg  0    0.1   0.03    0.15   1160
adamg  0    0.1   0.003   0.015  1161
adamg  0    0.1   0.1     0.5    1162
"""
"""Table G.1: the recipe, alpha, nu, the rates elsewhere and on the sphere, the line of the text."""

MIXTURE = "spherenorm_paper.audio.t4:adam_before_sgd"
STUDIES = sorted(name for name in study_classes() if find_study(name).uses_paper_data)


def trials_of(name):
    return find_study(name).trials(Plan("full", seeds=(0,), real=True), Runs())


def more_of(spec):
    """Options of the run, or of its task, that the paper speaks of."""
    given = {**spec.options, **spec.regime.to_json()}
    return " ".join(f"{name}={given[name]}" for name in MORE if name in given) or "-"


def settings_of(spec):
    point = {**load_recipe(spec.recipe).defaults, **spec.hyper_parameters}
    if spec.recipe == MIXTURE:  # Adam with its own coefficients
        point = {**load_recipe("adam").defaults, **spec.hyper_parameters}
    if "betas" in point:
        momentum = "{:g}/{:g}".format(*point["betas"])
        assert point["eps"] == 1e-8  # line 889
    else:
        momentum = f"{point['momentum']:g}" + "N" * point["nesterov"]
    rates = (float(f"{point[name]:.6g}") for name in ("lr", "weight_decay"))
    sizes = spec.batch_size, spec.epochs
    return *rates, momentum, *sizes, spec.schedule, more_of(spec)


def paper_of(row):
    sizes = int(row["batch"]), int(row["epochs"])
    rates = float(row["lr"]), float(row["decay"])
    return *rates, row["momentum"], *sizes, row["schedule"], row["more"]


@pytest.mark.parametrize("name", STUDIES)
def test_the_settings_are_the_papers_row_by_row(name):
    """Every run has one row, and every row a run."""
    own, used = [row for row in ROWS if row["study"] == name], []
    for trial in trials_of(name):
        if trial.spec.rest is not None:  # of Table G.1
            continue
        place = trial.place.condition or "-", trial.place.arm
        (row,) = (
            row for row in own
            if all(map(re.fullmatch, (row["condition"], row["arm"]), place))
        )  # fmt: skip
        assert settings_of(trial.spec) == paper_of(row), (trial.place, row["tex"])
        used.append(row)
    assert [row for row in own if row not in used] == []
    assert own


def test_each_row_of_table_g1_has_its_two_rates():
    found = []
    for spec in (trial.spec for trial in trials_of("g1") if trial.spec.rest is not None):
        point, rest = spec.hyper_parameters, spec.rest
        row = spec.recipe, point["alpha"], point["nu"], rest["lr"], point["lr"]
        found.append(" ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in row))
        budget = spec.epochs, spec.batch_size, spec.schedule
        assert budget == (100, 256, "cosine")  # lines 888, 893
        assert (rest["recipe"], rest["momentum"], rest["nesterov"]) == ("sgd", 0.9, True)
    theirs = [" ".join(line.split()[:-1]) for line in GRASSMANN.strip().split("\n")]
    assert found == theirs
