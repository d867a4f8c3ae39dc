"""Table H.6: the momentum coefficient."""

from __future__ import annotations

from itertools import pairwise

from experiments.claims import Claim, paired, performance, sample
from experiments.plots import Picture, curves
from experiments.results import Results, Trial
from experiments.study import Plan, Study, Table, cell

__all__ = ["H6"]

MOMENTA = (0.5, 0.8, 0.9, 0.95, 0.975)
PAPER = {
    0.5: ("7.60", "67.57", "6.88", "67.75"),
    0.8: ("8.31", "67.64", "6.57", "68.55"),
    0.9: ("8.53", "67.42", "6.33", "68.95"),
    0.95: ("8.76", "67.67", "6.23", "69.12"),
    0.975: ("8.73", "67.56", "6.14", "69.17"),
}
"""SGD's last norm and accuracy, SGDP's."""


class H6(Study):
    """Table H.6: the larger the momentum, the more the projection matters

    SGD and SGDP without weight decay, Nesterov momentum from 0.5 to 0.975, one learning rate for all. Corollary 2.3: the
    squared norm of SGD grows by 1 + 2 beta / (1 - beta) times what the steps alone would add, of SGDP by the steps alone.
    """

    name = "h6"

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        return [
            trial
            for beta in MOMENTA
            for label, recipe in (("SGD", "sgd"), ("SGDP", "sgdp"))
            for trial in self.seeded(
                plan,
                f"{label} β={beta}",
                "digits",
                recipe,
                {"lr": 0.1, "momentum": beta, "nesterov": True},
            )
        ]

    def tables(self, results: Results) -> list[Table]:
        rows = []
        for beta in MOMENTA:
            sgd, sgdp = (results.arm(f"{label} β={beta}") for label in ("SGD", "SGDP"))
            if not (sgd or sgdp):
                continue
            numbers = (
                sgd.mean("norm_last"),
                sgdp.mean("norm_last"),
                sgdp.mean("norm_last") - sgd.mean("norm_last"),
            )
            paper = PAPER[beta]
            theirs = (paper[0], paper[2], f"{float(paper[2]) - float(paper[0]):.2f}")
            scores = (
                cell(sgd.mean("test"), ".2f"),
                cell(sgdp.mean("test"), ".2f"),
                paper[1],
                paper[3],
            )
            rows.append((f"{beta:g}", *(cell(x, ".3f") for x in numbers), *theirs, *scores))
        norms = (
            "norm SGD",
            "SGDP",
            "difference",
            "paper norm SGD",
            "paper SGDP",
            "paper difference",
        )
        columns = ("momentum", *norms, "accuracy SGD", "SGDP", "paper SGD", "paper SGDP")
        note = "Means over seeds; no weight decay. Norms are means over channels."
        return [Table("Last norm and accuracy", columns, rows, note)] if rows else []

    def pictures(self, results: Results) -> list[Picture]:
        pictures = []
        for label in ("SGD", "SGDP"):
            chosen = results.where(lambda item, label=label: item.arm.split()[0] == label)  # type: ignore[misc]
            pictures.append(
                curves(chosen, "norm", "norm ‖w‖", f"Norm of {label} for each momentum.")
            )
        return [picture for picture in pictures if picture.figure.data]

    def claims(self, results: Results) -> list[Claim]:
        def norms(label: str, beta: float) -> dict[int, float]:
            return results.arm(f"{label} β={beta}").values("norm_last")

        def gap(beta: float) -> dict[int, float]:
            sgd, sgdp = norms("SGD", beta), norms("SGDP", beta)
            return {seed: sgd[seed] - sgdp[seed] for seed in sorted(sgd.keys() & sgdp.keys())}

        source = "Table H.6"
        claims = [
            paired(
                "SGD's last norm is larger with momentum 0.95 than with 0.5",
                norms("SGD", 0.95),
                norms("SGD", 0.5),
                ">",
                source=source,
                paper="+1.16",
            ),
            paired(
                "The gap between SGD's and SGDP's last norms is larger at 0.95 than at 0.5",
                gap(0.95),
                gap(0.5),
                ">",
                source=source,
                paper="2.53 against 0.72",
            ),
        ]
        steps = [gap(beta) for beta in MOMENTA]
        shared = sorted(set.intersection(*(set(step) for step in steps)))
        rising = {
            seed: float(sum(b[seed] > a[seed] for a, b in pairwise(steps))) for seed in shared
        }
        text = "The gap grows with every step of the momentum: of four steps more than three rise"
        claims.append(sample(text, rising, ">", 3.0, source=source, paper="4", unit="steps"))
        for beta in (0.5, 0.9, 0.975):
            scores = (results.arm(f"{label} β={beta}").values("test") for label in ("SGDP", "SGD"))
            paper = f"{float(PAPER[beta][3]) - float(PAPER[beta][1]):+.2f}"
            claims.append(
                performance(
                    f"SGDP scores higher than SGD at momentum {beta}",
                    *scores,
                    source=source,
                    paper=paper,
                    unit="pp",
                )
            )
        return claims
