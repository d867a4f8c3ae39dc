"""Tables 2, D.2 and D.3: the paper's settings, and claims that can go either way."""

from dataclasses import replace

import pytest

from spherenorm_experiments.analysis import AGAINST, FOR, Result, Results
from spherenorm_experiments.study import Plan, find_study


def real_trials(name):
    return find_study(name).trials(Plan("full", real=True), Results([]))


def results_of(name, score):
    """Results with a score for each setting, contender and seed: made, not run."""
    items = []
    for trial in real_trials(name):
        where = trial.arm.settings
        value = score(where["condition"], where["contender"], trial.spec.seed)
        summary = {"diverged_at": None, "test": value, "validation": value}
        spec = replace(trial.spec, probes=())  # no records to be read
        items.append(Result("made", spec, {}, summary, None, arm=trial.arm))
    return Results(items)


def verdict(name, text, score):
    claims = find_study(name).decided(results_of(name, score))
    (claim,) = (claim for claim in claims if claim.claim.text.startswith(text))
    return claim.verdict


def noise(seed):
    return 0.1 * (seed % 3)


def test_the_papers_runs_of_table_2_have_its_settings():
    specs = {(t.arm.settings["condition"], t.spec.recipe): t.spec for t in real_trials("t2")}
    assert len(specs) == 20
    decays = {recipe: specs["ResNet-50", recipe].hyper_parameters for _, recipe in specs}
    assert {recipe: given["weight_decay"] for recipe, given in decays.items()} == {
        "sgd": 1e-4, "sgdp": 1e-5, "adam": 1e-4, "adamw": 1e-4, "adamp": 1e-6
    }  # fmt: skip
    assert decays["sgd"] == {"momentum": 0.9, "nesterov": True, "lr": 0.1, "weight_decay": 1e-4}
    assert decays["adamp"]["lr"] == 1e-3
    mobile, mixed = specs["MobileNetV2", "sgd"], specs["ResNet-50 + CutMix", "sgd"]
    assert (mobile.epochs, mobile.batch_size, mobile.regime.label_smoothing) == (150, 1024, 0.1)
    assert (mixed.epochs, mixed.batch_size, mixed.options["cutmix"]) == (150, 256, 1.0)
    plain = specs["ResNet-18", "sgd"]
    assert (plain.epochs, plain.batch_size, plain.schedule) == (100, 256, "cosine")
    assert {spec.options["data_set"] for spec in specs.values()} == {"imagenet"}
    assert not any(spec.regime.warmup for spec in specs.values())


def test_every_batch_of_table_d3_has_micro_batches_of_one_size():
    for plan, size in ((Plan("small", real=True), 256), (Plan("full"), 32)):
        specs = [trial.spec for trial in find_study("d3").trials(plan, Results([]))]
        assert len({spec.batch_size for spec in specs}) == 3
        assert {spec.batch_size / spec.regime.micro_batches for spec in specs} == {size}
        assert len({spec.epochs for spec in specs} - {3, 100}) == 0


def test_table_d2_has_the_techniques_of_its_title():
    for trial in find_study("d2").trials(Plan("full"), Results([])):
        options = trial.spec.options
        assert options["augmentation"] == "randaugment"
        assert options["dropout"] == options["stochastic_depth"] == 0.2
    assert {t.spec.options["network"] for t in real_trials("d2")} == {
        *(f"efficientnet-b{scale}" for scale in range(4)), "rexnet-1.0", "rexnet-1.3"
    }  # fmt: skip


@pytest.mark.parametrize(("sign", "found"), [(1, FOR), (-1, AGAINST)])
def test_the_claims_about_large_batches_go_either_way(sign, found):
    place = {"batch 32": 0, "batch 96": 1, "batch 288": 2}

    def gains(setting, contender, seed):
        step = place[setting] * (contender == "AdamP")
        return 80 + 3 * sign * step + noise(seed + step)

    def losses(setting, contender, seed):
        return 80 - 5 * sign * place[setting] + noise(seed + place[setting])

    text = "AdamP's gain in accuracy is larger at batch 288 than at batch 32"
    assert verdict("d3", text, gains) in found
    assert verdict("d3", "AdamW's accuracy falls from batch 32 to batch 288", losses) in found
