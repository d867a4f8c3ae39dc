"""Tables 2 and H.1 on digits: five optimizers on four networks, steps to a target, and performance profiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.claims import Claim, paired, performance
from experiments.plots import Picture, band, base, color_of, profile
from experiments.results import AS, Results, Trial, place
from experiments.study import Plan, Study, Table, cell

__all__ = ["T2"]

SGD = {"lr": 0.1, "momentum": 0.9, "nesterov": True}
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("sgd", {**SGD, "weight_decay": 1e-2}),
    "SGDP": ("sgdp", {**SGD, "weight_decay": 1e-3}),
    "Adam": ("adam", {"lr": 0.01, "weight_decay": 1e-2}),
    "AdamW": ("adamw", {"lr": 0.01, "weight_decay": 1e-2}),
    "AdamP": ("adamp", {"lr": 0.01, "weight_decay": 1e-4}),
}
NETWORKS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "depthwise": (
        "MobileNetV2",
        {"variant": "depthwise", "label_smoothing": 0.1},
        ("71.55", "72.09", "69.32", "71.21", "72.45"),
    ),
    "plain": ("ResNet-18", {"variant": "plain"}, ("70.47", "70.70", "68.05", "70.39", "70.82")),
    "residual": (
        "ResNet-50",
        {"variant": "residual"},
        ("76.57", "76.66", "71.87", "76.54", "76.92"),
    ),
    "residual + CutMix": (
        "ResNet-50 + CutMix",
        {"variant": "residual", "cutmix": True},
        ("77.69", "77.77", "76.35", "78.04", "78.22"),
    ),
}
"""The paper's network, the task's options, the paper's accuracy of each optimizer."""


class T2(Study):
    """Tables 2 and H.1: image classification, on digits

    The paper's optimizers at the paper's weight decays (times 100, as in Table 1) on a small network of each of its kinds.
    All reach about 98 %, where a difference of one image is 0.28 points: what can be read off is how fast, and the norms.
    """

    name = "t2"

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        return [
            trial
            for network, (_, options, _) in NETWORKS.items()
            for label, (recipe, setting) in OPTIMIZERS.items()
            for trial in self.seeded(
                plan, f"{network}: {label}", "digits", recipe, setting, options=options
            )
        ]

    def tables(self, results: Results) -> list[Table]:
        labels, accuracy, norms = _labels(results), [], []
        for network, (theirs, _, paper) in NETWORKS.items():
            runs = [results.arm(_arm(network, label)) for label in labels]
            if not any(runs):
                continue
            accuracy.append((network, *(_spread(run) for run in runs), *paper))
            share = next(run for run in runs if run).mean("invariant_share")
            shown = (cell(run.mean("norm_last") / run.mean("norm_start"), ".2f") for run in runs)
            norms.append((f"{network} (for {theirs})", f"{100 * share:.1f} %", *shown))
        if not accuracy:
            return []
        columns = ("network", *labels, *(f"paper {label}" for label in OPTIMIZERS))
        note = "Test accuracy, mean ± standard deviation over seeds; the paper's columns are ImageNet top-1."
        grown = ("network", "scale-invariant", *labels)
        text = "Last norm over initial norm. The paper counts 95.5 % (ResNet-18) and 91.8 % (ResNet-50) of parameters as scale-invariant."
        tables = [
            Table("Accuracy", columns, accuracy, note),
            Table("Norm growth", grown, norms, text),
        ]
        known = _steps_to_target(results)
        speed = [(label, *_medians(results, label)) for label in known]
        heads = ("optimizer", *NETWORKS)
        note = "Median over seeds; the target is the median of the best baseline's last validation scores. Missed: in more than half."
        return [*tables, Table("Steps to the target", heads, speed, note)] if speed else tables

    def pictures(self, results: Results) -> list[Picture]:
        pictures = []
        for network in NETWORKS:
            figure = base("step", "validation accuracy (%)")
            for label in _labels(results):
                runs = results.arm(_arm(network, label))
                steps, values = runs.curves("validation")
                if len(values):
                    band(figure, steps, values, label, color_of(runs.items[0].spec.recipe))
            if figure.data:
                figure.update_yaxes(range=[85, 100])
                pictures.append(
                    Picture(figure, f"Validation accuracy after each epoch, {network}.")
                )
        table = _steps_to_target(results)
        if table:
            caption = (
                "Performance profile over networks and seeds: the share of problems whose target (the median of the best baseline's last "
                "validation scores) is reached within τ times the fastest optimizer's steps."
            )
            pictures.append(
                profile({_recipe(label): steps for label, steps in table.items()}, caption)
            )
        return pictures

    def claims(self, results: Results) -> list[Claim]:
        claims = []
        for ours, baseline in (("SGDP", "SGD"), ("AdamP", "AdamW")):
            for network, (_, _, paper) in NETWORKS.items():
                scores = [
                    results.arm(f"{network}: {label}").values("test") for label in (ours, baseline)
                ]
                index = list(OPTIMIZERS).index
                theirs = f"{float(paper[index(ours)]) - float(paper[index(baseline)]):+.2f}"
                text = f"{ours} scores higher than {baseline} ({network})"
                claims.append(performance(text, *scores, source="Table 2", paper=theirs, unit="pp"))
        for network in NETWORKS:
            paths = [
                results.arm(f"{network}: {label}").values("total_effective_step")
                for label in ("AdamP", "AdamW")
            ]
            text = f"AdamP keeps larger effective steps than AdamW: ratio of the paths travelled on the sphere ({network})"
            claims.append(paired(text, paths[0], paths[1], ">", how="ratio", source="Section 2.4"))
        return claims


def _labels(results: Results) -> list[str]:
    """Our optimizers of which there are runs, and the recipes that stand in for one, as "<recipe> as <optimizer>"."""
    listed = {item.arm.partition(": ")[2] for item in results if not place(item)}
    own = [
        f"{item.spec.recipe}{AS}{of.partition(': ')[2]}" for item in results if (of := place(item))
    ]
    return [*(label for label in OPTIMIZERS if label in listed), *dict.fromkeys(own)]


def _arm(network: str, label: str) -> str:
    recipe, mark, optimizer = label.rpartition(AS)
    return f"{recipe}{mark}{network}: {optimizer}"


def _recipe(label: str) -> str:
    return OPTIMIZERS[label][0] if label in OPTIMIZERS else label.rpartition(AS)[0]


def _spread(runs: Results) -> str:
    values = list(runs.values("test").values())
    if not values:
        return "–"
    deviation = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{deviation}" + (
        f" ({len(runs.diverged)} diverged)" if runs.diverged else ""
    )


def _medians(results: Results, label: str) -> list[str]:
    steps = [_steps_to_target(results, (network,)).get(label, []) for network in NETWORKS]
    medians = [float(np.median(values)) if values else np.inf for values in steps]
    return [f"{value:.0f}" if np.isfinite(value) else "missed" for value in medians]


def _steps_to_target(
    results: Results, networks: Sequence[str] = tuple(NETWORKS)
) -> dict[str, list[float]]:
    """For each optimizer its steps on each (network, seed), in one order; inf where the target was missed or the run diverged."""
    table: dict[str, list[float]] = {label: [] for label in _labels(results)}
    for network in networks:
        finals = [
            list(results.arm(f"{network}: {label}").values("validation").values())
            for label in ("SGD", "Adam", "AdamW")
        ]
        medians = [float(np.median(values)) for values in finals if values]
        if not medians:
            continue
        target = max(medians)
        by_label = {
            label: {item.spec.seed: item for item in results.arm(_arm(network, label))}
            for label in table
        }
        seeds = sorted(set().union(*by_label.values()))
        for label, by_seed in by_label.items():
            for seed in seeds:
                records = by_seed[seed].metrics if seed in by_seed else []
                reached = [
                    record["step"]
                    for record in records
                    if record.get("validation", -np.inf) >= target
                ]
                table[label].append(float(reached[0]) if reached else np.inf)
    return {label: steps for label, steps in table.items() if steps}
