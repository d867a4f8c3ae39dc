"""Norm growth of SGD and of SGDP at one learning rate, on a small ResNet (`make demo`).

spherenorm run experiments/studies/norm_growth.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from spherenorm_experiments import (
    Arm,
    Claim,
    Comparison,
    Condition,
    Decision,
    Picture,
    RecordedNumber,
    Result,
    Runs,
    Verdict,
    add_band,
    color_of,
    empty_figure,
    estimate,
    number,
)

LR, MOMENTUM = 0.5, 0.9
"""A rate at which SGD's norms grow: with a tenth of it they hardly do."""

FIELDS = {"probes": ("norms",), "probe_every": 3}

Curve = list[list[float]]
"""For each epoch its last step, the norm of a channel there, and the epoch's effective step."""


def _curve(run: Result) -> Curve:
    norms, effective_steps = run.curve("norm"), run.curve("effective_step")
    length: int = run.summary["steps_per_epoch"]
    curve = []
    for end in range(length, run.summary["steps"] + 1, length):
        steps_of_epoch = [x for step, x in effective_steps.items() if end - length < step <= end]
        mean_step = np.mean(steps_of_epoch)
        curve.append([end, *(float(f"{value:.4g}") for value in (norms[end], mean_step))])
    return curve


norm_curve = RecordedNumber("norms and effective steps by epoch", _curve)


def first_norm(run: Result) -> float:
    """Return the mean norm of a channel at the start."""
    return float(run.summary["norm_start"])


def last_norm(run: Result) -> float:
    """Return the mean norm of a channel at the end."""
    return float(norm_curve(run)[-1][1])


def late_effective_step(run: Result) -> float:
    """Return the mean effective step over the second half of the epochs."""
    curve = norm_curve(run)
    return float(np.mean([effective_step for *_, effective_step in curve[len(curve) // 2 :]]))


def _ratio(runs: Runs, key: Callable[[Result], float]) -> pd.Series:
    """Return SGDP's number over SGD's, by seed."""
    sgdp, sgd = (number(runs.selected("", arm), key) for arm in ("SGDP", "SGD"))
    return sgdp / sgd


def late_step_ratio(runs: Runs) -> pd.Series:
    """Return SGDP's late effective step over SGD's, by seed."""
    return _ratio(runs, late_effective_step)


class NormGrowth(Comparison):
    """Two optimizers at one learning rate: their norms, effective steps and scores."""

    def summary(self, runs: Runs, decisions: Sequence[Decision]) -> list[str]:
        """Return what was trained, norms, effective steps, scores, and what follows."""
        arms = {arm.name: runs.selected("", arm.name) for arm in self.arms}
        if any(frame.empty for frame in arms.values()):
            return []
        norms, steps, scores = (
            {name: number(frame, key) for name, frame in arms.items()}
            for key in (last_norm, late_effective_step, "test")
        )
        start = number(arms["SGD"], first_norm).mean()
        growth = ", ".join(f"{name} {start:.2f} -> {x.mean():.2f}" for name, x in norms.items())
        late = ", ".join(f"{name} {x.mean():.1g}" for name, x in steps.items())
        times = replace(estimate(late_step_ratio(runs), ratio=True, form=".2g"), prefix="")
        accuracy = ", ".join(f"{name} {estimate(x, form='.1f')}" for name, x in scores.items())
        difference = estimate(scores["SGDP"] - scores["SGD"], form="+.2f")
        return [
            f"A ResNet trains on digits: lr {LR}, momentum {MOMENTUM}, {len(arms['SGD'])} seeds.",
            f"Norm of a channel: {growth}.",
            f"Effective step, second half: {late}; ratio {times}.",
            f"Accuracy (%): {accuracy}.",
            f"SGDP - SGD: {difference} points: {_in_words(decisions[0])}.",
            'Where it matters: "How to choose", in the documentation.',
        ]

    def pictures(self, runs: Runs) -> list[Picture]:
        """Return norms and effective steps at first, then the pictures of any comparison."""
        arms = {arm.name: runs.selected("", arm.name) for arm in self.arms}
        if any(frame.empty for frame in arms.values()):
            return []
        norms = empty_figure("step", "norm of a channel")
        curves = {name: np.array([norm_curve(run) for run in frame.run])
                  for name, frame in arms.items()}  # fmt: skip
        steps = curves["SGD"][0, :, 0].tolist()
        for arm in self.arms:
            starts = number(arms[arm.name], first_norm).to_numpy()[:, None]
            values = np.hstack([starts, curves[arm.name][:, :, 1]])
            ends = [values.min(0), values.max(0)]
            color = color_of(arm.recipe)
            add_band(norms, [0, *steps], np.median(values, axis=0), ends, arm.name, color)
        ratios = empty_figure("step", "effective step, SGDP / SGD")
        values = curves["SGDP"][:, :, 2] / curves["SGD"][:, :, 2]
        ends = [values.min(0), values.max(0)]
        add_band(ratios, steps, np.median(values, axis=0), ends, "SGDP / SGD", color_of("sgdp"))
        for figure in (norms, ratios):
            figure.update_yaxes(rangemode="tozero")
        return [
            Picture(norms, "Norm of a channel's weights: median over seeds, and their range.", 300),
            Picture(ratios, "How many times as far SGDP turns the weights as SGD, epoch by epoch: "
                            "median over seeds, and their range.", 300),
            *super().pictures(runs),
        ]  # fmt: skip


def _in_words(decision: Decision) -> str:
    """Return the verdict on the scores, or what so many seeds would have detected."""
    word: str = decision.verdict_word
    if decision.verdict in (Verdict.SUPPORTED, Verdict.CONTRADICTED):
        return f"SGDP scores {word}"
    if decision.verdict is Verdict.INCONCLUSIVE and decision.detectable is not None:
        return f"not decided, {decision.seeds} seeds detect {decision.detectable:.2g} points"
    return word


STUDY = NormGrowth(
    "norm-growth",
    f"""Momentum makes norms grow, and the projection holds them

    A small ResNet trains on scikit-learn's digits by SGD and by SGDP: learning rate {LR},
    momentum {MOMENTUM}, no weight decay, the same starts and batches. A channel of a convolution
    that BatchNorm follows has no length that matters: only its direction does, and a step of length
    s turns it by about s / |w|. The rate is high, so that norms grow within seconds; scores are
    those of this rate, not of a tuned one. It falls to 0 along a cosine, as rates do: at a constant
    one SGD's growing norms do what a schedule would, and SGDP, which lacks that brake, scores less.
    """,
    arms=[
        Arm(name, fixed={"momentum": MOMENTUM}, fields=FIELDS)
        for name in ("SGD", "SGDP")
    ],
    tune={"lr": (LR,)},
    conditions=[Condition("", "digits", {"variant": "residual"})],
    claims=[
        Claim("norm", "< 1", lambda runs: _ratio(runs, last_norm),
              "SGDP's last norm is smaller than SGD's: their ratio", ratio=True),
        Claim("step", "> 2", late_step_ratio,
              "SGDP's effective step is more than twice SGD's in the second half of the training",
              ratio=True, primary=True),
    ],
    first_seed=1300,
    seeds={"small": 6},
)  # fmt: skip
