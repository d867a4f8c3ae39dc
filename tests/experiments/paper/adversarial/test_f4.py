"""Figure 4: the speed claim on known curves, and the paper's settings."""

import itertools
from types import SimpleNamespace

from scipy.stats import binomtest

from spherenorm_experiments.analysis import Result, Results
from spherenorm_experiments.core import Spec
from spherenorm_experiments.paper.adversarial.f4 import _last, _share_until
from spherenorm_experiments.study import find_study
from spherenorm_experiments.study._condition import arm_of


def _item(losses, seed=0, per_epoch=2):
    return SimpleNamespace(
        metrics=[{"step": k + 1, "loss": loss} for k, loss in enumerate(losses)],
        summary={"steps_per_epoch": per_epoch},
        spec=SimpleNamespace(seed=seed),
    )


def test_the_share_of_steps_until_the_other_run_s_last_loss():
    slow, fast = _item([8, 6, 4, 2]), _item([4, 2, 1, 1])
    assert _last(slow) == 3  # the mean over the last epoch
    assert _share_until(fast, {0: _last(slow)}) == 0.5  # 4 and 2 have the mean 3, after two steps
    assert _share_until(slow, {0: _last(fast)}) == 1.0  # never


def test_a_run_of_adamp_that_diverged_counts_against_its_speed():
    """Left out, the seeds on which it failed would speak for it."""
    study = find_study("f4")
    setting, (adam, adamp) = study.on[0], study.contenders
    losses = {adam: [8, 6, 4, 2, 2, 2], adamp: [2, 2, 1, 1, 1, 1]}
    items = []
    for contender, seed in itertools.product((adam, adamp), range(8)):
        lost = {adam: seed == 7, adamp: seed in (5, 6, 7)}[contender]
        arm = arm_of(setting, contender)
        spec = Spec("adversarial", arm.recipe, seed=seed)
        summary = {"diverged_at": 1 if lost else None, "steps_per_epoch": 2}
        item = Result("", spec, {}, summary, None, arm=arm)
        vars(item)["metrics"] = _item(losses[contender]).metrics
        items.append(item)
    claim = next(c for c in study.evaluated(Results(items)) if "less than half" in c.claim.text)
    assert (claim.seeds, claim.numbers[0].n, claim.numbers[0].diverged) == (7, 5, 2)
    assert claim.p == binomtest(5, 7).pvalue
