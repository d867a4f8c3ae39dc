"""The paper's statements about what the studies cover, in its own words, by place.

Each is claimed by a study or has a written reason why not; the tests hold that.

Source: Heo et al., *AdamP: Slowing Down the Slowdown for Momentum Optimizers on Scale-invariant
Weights*, ICLR 2021.
"""

from __future__ import annotations

from spherenorm_experiments.analysis import Basis, calibrated, of_paper

__all__ = ["CALIBRATED", "REASONS", "STATEMENTS", "fitted", "says"]

INTRO, THEORY, METHOD, ANALYSIS = "Section 1", "Section 2.4", "Section 3.1", "Section 3.2"
IMAGES, TOYS, DELTA, DECAY = "Section 4.1", "Appendix B", "Appendix C", "Appendix F"
ROBUST, BIAS = "Section 4.3", "Appendix D.1"
HIGH, SPHERE, ADAM = "Appendix F.1", "Appendix G.1", "Appendix H.1"
MOMENTUM, COST = "Appendix H.3", "Appendix H.4"
LANGUAGE, RETRIEVAL = "Section 4.5", "Section 4.6"
TECHNIQUES, LARGE = "Appendix D.2", "Appendix D.3"

STATEMENTS: dict[str, tuple[str, str]] = {
    "1.slows": (INTRO, "the norm growth slows down the effective convergence"),
    "1.terminal": (
        INTRO,
        "“Ours” converges most quickly and achieves the best terminal objective value",
    ),
    "1.share": (
        INTRO,
        "95.5% and 91.8% of the parameters of the widely-used ResNet18 and ResNet50 "
        "are scale-invariant due to BN",
    ),
    "2.corollary": (
        f"{THEORY}, Corollary 2.3",
        "For a popular choice of β = 0.9, the factor is as high as 1+2β/(1-β) = 19",
    ),
    "2.nesterov": (
        THEORY,
        "Our observations are also applicable to Nesterov momentum and "
        "momentum-based adaptive optimizers like Adam",
    ),
    "3.eq11": (
        f"{METHOD}, Equation 11",
        "alleviated back to the vanilla gradient descent growth rate",
    ),
    "3.steps": ("Section 3", "prevents the momentum-induced effective step size decreases"),
    "3.time": (METHOD, "Our optimizers incur only 8% extra training time on top of the baselines"),
    "3.delta": (
        METHOD,
        "we found δ=0.1 to be sufficiently small to precisely detect orthogonality "
        "and sufficiently large to recall all scale-invariant weights",
    ),
    "3.2.gdm": (ANALYSIS, "the momentum GD does not converge sufficiently to the optimum"),
    "3.2.gdm-norm": (ANALYSIS, "the increase in the parameter norm (r=1.0 → 3.2)"),
    "3.2.wd": (
        ANALYSIS,
        "Careful tuning of WD partially addresses the slow convergence "
        "(momentum GD + WD trajectory) by regularizing the norm growth",
    ),
    "3.2.surge": (
        ANALYSIS,
        "WD is still unable to preclude the initial surge in the weight norm (r=1.0 → 2.53)",
    ),
    "3.2.subdues": (ANALYSIS, "successfully subdues the weight norm growth (r=1.0 → 1.12)"),
    "3.2.faster": (
        ANALYSIS,
        "ensuring undiminished effective step sizes and a faster convergence to the optimum",
    ),
    "3.2.hyper": (ANALYSIS, "WD is often a sensitive hyperparameter"),
    "t3.boosts": (
        "Section 4.2, Table 3",
        "We observe that AdamP boosts the performance against the baselines",
    ),
    "t1.restrain": (
        f"{ANALYSIS}, Table 1",
        "In all experiments, our projection solutions (SGDP, "
        "AdamP) restrain the weight norm growth much better than the vanilla momentum "
        "methods",
    ),
    "t1.tagging": (
        f"{ANALYSIS}, Table 1",
        "Adam-induced norm increase (+4.21) is 13.2 times "
        "greater than that of AdamP (+0.32) in the music tagging task",
    ),
    "t1.mitigates": (
        f"{ANALYSIS}, Table 1",
        "a careful choice of weight decay (WD) mitigates the norm increases",
    ),
    "t1.sensitive": (
        f"{ANALYSIS}, Table 1",
        "the final norm values and performances are sensitive to the WD value",
    ),
    "t1.stable": (
        f"{ANALYSIS}, Table 1",
        "our SGDP results in stable final norm values and "
        "performances across different WD values, even at WD=0",
    ),
    "t1.smaller": (
        f"{ANALYSIS}, Table 1",
        "under the same learning setup models with smaller "
        "terminal weight norms tend to obtain improved performances",
    ),
    "t1.score": (
        "Table 1",
        "SGD 0: 67.94, SGDP 0: 70.21; AdamW 0: 68.38, AdamP 0: 70.55; music "
        "tagging AdamW 90.86, AdamP 91.19",
    ),
    "t1.tuned": ("Table 1", "SGD 1e-4: 70.43; SGDP 1e-5: 70.57"),
    "t2.outperform": (
        f"{IMAGES}, Table 2",
        "Across the spectrum of network sizes, our optimizers outperform the baselines",
    ),
    "t2.cutmix": (
        f"{IMAGES}, Table 2",
        "Even when the state-of-the-art CutMix regularization is "
        "applied, our optimizers introduce further gains",
    ),
    "t2.adamw": (
        f"{IMAGES}, Table 2",
        "AdamW, which has closed the gap between Adam and SGD "
        "performances on large-scale benchmarks",
    ),
    "t5.table": ("Table 5", "Transformer-XL: AdamW 23.38, AdamP 23.26"),
    "t5.normalized": (
        f"{LANGUAGE}, Table 5",
        "When AdamP is applied on Transformer-XL + WN, it significantly improves over the AdamW "
        "baseline",
    ),
    "t5.plain": (
        LANGUAGE,
        "AdamP does not significantly outperform AdamW (23.33→23.26) without the explicit "
        "enforcement of scale invariance",
    ),
    "t5.harms": (
        LANGUAGE,
        "WN on its own harms the performance (23.33→23.90 for Adam)",
    ),
    "t5.beats": (
        LANGUAGE,
        "beating the original performance 23.33 by Adam on the vanilla network",
    ),
    "t5.none": (
        LANGUAGE,
        "Models in language domains, such as the Transformer, often do not have any "
        "scale-invariant weight",
    ),
    "t5.artificially": (
        LANGUAGE,
        "we introduce scale invariance artificially through the weight normalization (WN)",
    ),
    "t6.outperforms": (
        f"{RETRIEVAL}, Table 6",
        "AdamP outperforms Adam over all four image retrieval datasets",
    ),
    "t6.preceding": (
        RETRIEVAL,
        "ℓ2 projection of features, which induces a scale invariance in the preceding weights",
    ),
    "t6.deviation": (
        "Appendix H.2, Table H.4",
        "the performance increases for InShop-PA and SOP-PA are still greater than the standard "
        "deviation values",
    ),
    "t4.better": (
        "Section 4.4, Table 4",
        "AdamP shows better performances than the baselines, without having to adopt the complex "
        "mixture solution",
    ),
    "f4.faster": (
        f"{ROBUST}, Figure 4",
        "AdamP achieves a faster convergence than Adam (less than half the epochs required)",
    ),
    "f4.gap": (
        f"{ROBUST}, Table E.2",
        "AdamP brings more than +9.3 pp performance gap in all settings",
    ),
    "d1.outperforms": (
        f"{BIAS}, Table D.1",
        "AdamP outperforms Adam in all the benchmarks",
    ),
    "b.norm.9": (TOYS, "maximum norm 2.93 when momentum is 0.9"),
    "b.norm.99": (TOYS, "27.87 when momentum is 0.99"),
    "b.larger": (TOYS, "a larger momentum induces a larger norm increase"),
    "b.fails": (TOYS, "the momentum gradient method fails to optimize"),
    "b.fastest": (TOYS, "our method converges most quickly, among the compared methods"),
    "c.cosines": (
        DELTA,
        "the cosine similarities for scale-variant weights are [0.0028, 0.5660], "
        "compared to [5.5e-10, 4.4e-6] for scale-invariant ones (99% confidence "
        "intervals)",
    ),
    "c.discriminates": (
        DELTA,
        "In a wide range of delta values, AdamP perfectly discriminates the "
        "scale-variant and scale-invariant parameters",
    ),
    "c.performance": (DELTA, "AdamP consistently shows high performance"),
    "c.delta1": ("Table C.1", "δ 1: scale-variant detection 86.64%"),
    "c.delta.01": ("Table C.1", "δ 0.01: scale-invariant detection 97.73%"),
    "c.suitable": (
        DELTA,
        "δ=0.1 is suitable to separate scale-variant and scale-invariant parameters",
    ),
    "d2.effective": (
        f"{TECHNIQUES}, Table D.2",
        "AdamP is still effective in training with various techniques, and can contribute to "
        "improving the best performance of the network",
    ),
    "d3.table": (
        "Table D.3",
        "AdamW and AdamP, batch 4k: 72.41, 73.75; 8k: 69.74, 71.36; 16k: 63.79, 66.89",
    ),
    "d3.greater": (
        f"{LARGE}, Table D.3",
        "The performance improvement of AdamP in large-batch training is greater than that of "
        "regular batch-size",
    ),
    "d3.decrease": (
        LARGE,
        "a general optimizer suffers from a significant performance decrease in a large-batch "
        "training",
    ),
    "d3.cause": (
        LARGE,
        "the decrease of effective learning rate due to momentum can be considered as one of the "
        "causes of performance degradation in large-batch training",
    ),
    "d3.lamb": (
        LARGE,
        "AdamP does not show as much performance as the large-batch optimizers",
    ),
    "f.prevent": (
        DECAY,
        "In all considered settings, SGDP and AdamP effectively prevent the norm "
        "growth, which prevents the rapid decrease of the effective step sizes",
    ),
    "f.better": (DECAY, "SGDP and AdamP shows better performances than the baselines"),
    "f.poor": (
        DECAY,
        "results in poor performances as soon as non-optimal weight decay values are used",
    ),
    "f.abnormal": (
        DECAY,
        "even showing abnormalities such as the gradual increase of the effective step sizes",
    ),
    "f.smooth": (
        DECAY,
        "SGDP and AdamP prevent rapid norm growth without weight decay, leading to "
        "smooth effective step size reduction",
    ),
    "f.insensitive": (DECAY, "SGDP and AdamP are not sensitive to the weight decay values"),
    "f.high-step": (
        HIGH,
        "The high weight decay further reduces the weight norm and increases the "
        "effective step-size",
    ),
    "f.high-score": (HIGH, "it does not lead to an improvement in performance"),
    "f.best": (
        HIGH,
        "the weight decay used in Section 4.1 (1e-4) is the best value for the baseline optimizers",
    ),
    "g.norm": (SPHERE, "SGDG and AdamG optimizer do not introduce any norm increase by definition"),
    "g.slower": (SPHERE, "rate of convergence seems slower than our SGDP and AdamP"),
    "g.clip": (
        SPHERE,
        "As the clipping is removed, SGDG and AdamG come closer to the fast convergence of ours",
    ),
    "g.quickly": (
        SPHERE,
        "the Grassmann optimizers also address the unnecessary norm increase and "
        "converge as quickly as our optimizers do",
    ),
    "g.nu": (f"{SPHERE}, Table G.1", "The gradient clipping (ν) did not have a significant effect"),
    "g.alpha": (f"{SPHERE}, Table G.1", "the regularization (α) decrease the performance"),
    "g.options": (
        f"{SPHERE}, Table G.1",
        "SGDG shows the best performance at option 4) and AdamG is the best in option 1)",
    ),
    "g.lower": (
        f"{SPHERE}, Table G.1",
        "the performances of Grassmann optimizers are still much lower than our optimizers",
    ),
    "g.comparable": (
        f"{SPHERE}, Table G.1",
        "After learning rate tuning, Grassmann optimizers show "
        "comparable performance with the baseline optimizer",
    ),
    "g.essential": (
        f"{SPHERE}, Table G.1",
        "learning rate tuning is essential for the performance",
    ),
    "g.higher": (f"{SPHERE}, Table G.1", "our optimizer has a higher performance"),
    "h.early": (ADAM, "Adam optimizer shows quiet different steps in early stage"),
    "h.mitigate": (
        ADAM,
        "the fact that norm growth reduces the rate of late convergence is the same as SGD. "
        "The weight decay and our projection mitigate the norm growth and helps fast convergence",
    ),
    "h6.gap": (
        f"{MOMENTUM}, Table H.6",
        "The larger the momentum coefficient, the greater the norm difference between SGD and SGDP",
    ),
    "h6.accuracy": (
        f"{MOMENTUM}, Table H.6",
        "the improvement in accuracy of SGDP also increases as the momentum coefficient increases",
    ),
    "h6.sgd": ("Table H.6", "SGD, norm at the last epoch: 7.60, 8.31, 8.53, 8.76, 8.73"),
    "h6.sgdp": ("Table H.6", "SGDP, norm at the last epoch: 6.88, 6.57, 6.33, 6.23, 6.14"),
    "h6.most": (
        f"{MOMENTUM}, Table H.6",
        "our optimizer can be used with most of the momentum coefficients",
    ),
    "h7.reduced": (
        f"{COST}, Table H.7",
        "Training iteration is reduced, so the performance of our optimizer is reduced",
    ),
    "h7.still": (f"{COST}, Table H.7", "it still outperforms the baseline optimizer"),
}
"""By a name of ours: the place, and the words. Table entries are put in words."""

CALIBRATED = ("b.norm.9", "3.2.gdm-norm")
"""Numbers to which a free number of ours was fitted, so that they cannot fail."""

REASONS: dict[str, str] = {
    "1.share": "A count of parameters, not a result of training: the tests hold the audit of the "
    "full-size networks to it, 95.5 % and 91.8 %.",
    "d3.cause": "A conclusion from the scores; the paths on the sphere are claimed by themselves.",
    "d3.lamb": "LARS and LAMB are not here; a recipe of theirs takes part by `--optimizers`.",
    "3.2.hyper": "Said in general; Table 1's “sensitive to the WD value” claims it with numbers.",
    "g.options": "The options differ in the learning rate of the Euclidean half, which our sweep "
    "leaves out: its classifier is fixed.",
    "t6.deviation": "A remark on the paper's own runs; for ours the intervals of the differences "
    "say it.",
    "h.early": "An impression of a picture, without a quantity.",
}
"""Statements without a claim, and why."""


def says(name: str) -> Basis:
    """The basis of a claim: a statement of the paper, by name.

    Raises:
        KeyError: there is no such statement.
    """
    return of_paper(*STATEMENTS[name])


def fitted(name: str) -> Basis:
    """The basis of a claim about a number that ours was fitted to."""
    assert name in CALIBRATED
    return calibrated(*STATEMENTS[name])
