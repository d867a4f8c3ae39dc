"""Faults of training: seeds and order, splits and scores, the step."""

from tests.experiments.planted._fault import CORE, ENGINE, Fault, fault

__all__ = ["TRAINING"]

SEEDS = "engine/test_seeds"
REGIME = "engine/test_regime"
LOADER = "engine/test_loader"
SPLITS = "engine/test_scores"

STEP = "        self.scaler.step(optimizer)\n"
UPDATE = "        self.scaler.update()\n"

TRAINING = (
    # seeds and order
    fault(
        "the seed of the weights is ignored",
        ENGINE + "_training.py",
        'stream(self.spec.seed, "init")',
        'stream(0, "init")',
        SEEDS,
    ),
    fault(
        "the seed of the order is ignored",
        ENGINE + "_loader.py",
        'generator(seed, "data", epoch)',
        'generator(0, "data", epoch)',
        SEEDS,
    ),
    fault(
        "the seed of the augmentation is ignored",
        ENGINE + "_loader.py",
        "stream(self.seed, self.name, *key)",
        "stream(0, self.name, *key)",
        SEEDS,
    ),
    fault(
        "the seed of the noise is ignored",
        ENGINE + "_gradients.py",
        'stream(self.spec.seed, "noise", *key)',
        'stream(0, "noise", *key)',
        SEEDS,
    ),
    fault(
        "the noise is the same in each step",
        ENGINE + "_gradients.py",
        "key = (step, number, self.ranks.rank)",
        "key = (0, number, self.ranks.rank)",
        SEEDS,
    ),
    fault(
        "the noise is the same in each micro-batch",
        ENGINE + "_gradients.py",
        "key = (step, number, self.ranks.rank)",
        "key = (step, 0, self.ranks.rank)",
        SEEDS,
    ),
    fault(
        "the order is the same in each epoch",
        ENGINE + "_loader.py",
        'generator(seed, "data", epoch)',
        'generator(seed, "data", 0)',
        LOADER + "::test_every_epoch_has_each_item_once_in_an_order_and_an_augmentation_of_its_own",
    ),
    fault(
        "the augmentation is the same in each epoch",
        ENGINE + "_loader.py",
        "stream(self.seed, self.name, *key)",
        "stream(self.seed, self.name, key[1])",
        SEEDS,
    ),
    fault(
        "Python's random state is not seeded",
        CORE + "_streams.py",
        "    random.seed(seed)\n",
        "",
        LOADER + "::test_a_task_that_draws_from_python_or_numpy_is_seeded_by_the_run",
    ),
    fault(
        "a resumed run starts its epoch again",
        ENGINE + "_loader.py",
        "for step in range(self.start, self.stop):",
        "for step in range(self.start - self.start % 5, self.stop):",
        LOADER + "::test_a_run_on_a_data_set_goes_on_in_the_middle_of_an_epoch",
    ),
    # splits and scores
    fault(
        "validation on the test set",
        ENGINE + "_loop.py",
        "_scores(self.training, self.run.splits.validation)",
        "_scores(self.training, self.run.splits.test)",
        SPLITS,
    ),
    fault(
        "the score that selects is of the test set",
        ENGINE + "_loop.py",
        "_scores(training, getattr(run.splits, name))",
        "_scores(training, run.splits.test)",
        SPLITS,
    ),
    fault(
        "the score that is reported is of the validation set",
        ENGINE + "_loop.py",
        "_scores(training, getattr(run.splits, name))",
        "_scores(training, run.splits.validation)",
        SPLITS,
    ),
    fault(
        "evaluation in training mode",
        ENGINE + "_training.py",
        "self.module.eval()",
        "self.module.train()",
        SPLITS,
    ),
    fault(
        "the average is not used in evaluation",
        ENGINE + "_training.py",
        "            if self.average is not None:\n                stack",
        "            if False:\n                stack",
        REGIME + "::test_warm_up_clipping_smoothing_and_average_are_torchs",
    ),
    fault(
        "a mean over batches in place of items",
        CORE + "_metrics.py",
        'super().__init__(lambda total, n: then(total / n if n else float("nan")), values, count)',
        "super().__init__(lambda total, n: then(total / n), values.mean(), count / count)",
        "core/test_metrics",
    ),
    fault(
        "an item that a rank repeats counts twice",
        ENGINE + "_loader.py",
        "yield place, number == place, batch",
        "yield number, True, batch",
        LOADER + "::test_ranks_evaluate_each_item_once_and_equally_many_batches",
    ),
    fault(
        "selection reads the seeds that are reported",
        "spherenorm_experiments/analysis/_grid.py",
        "self.runs[index].items() if self._tunes(seed)]",
        "self.runs[index].items() if not self._tunes(seed)]",
        "analysis/test_grid",
    ),
    fault(
        "the worst point of a search",
        "spherenorm_experiments/analysis/_grid.py",
        "index = best(scores, key=lambda i: scores[i])",
        "index = (min if best is max else max)(scores, key=lambda i: scores[i])",
        "analysis/test_grid",
    ),
    fault(
        "pairs by place",
        "spherenorm_experiments/analysis/_samples.py",
        "paired = {seed: compare(a[seed], b[seed], how) for seed in shared}",
        "paired = {s: compare(x, y, how) for s, x, y in zip(a, a.values(), b.values())}",
        "analysis/test_statistics::test_pairs_are_made_of_the_seeds_that_both_have",
    ),
    # the step
    fault(
        "accumulation forgets to divide",
        ENGINE + "_gradients.py",
        "share = weight * self.ranks.world",
        "share = self.ranks.world",
        REGIME + "::test_micro_batches_change_only_rounding",
    ),
    fault(
        "an uneven part weighs as a full one",
        ENGINE + "_loader.py",
        "len(own) / whole)",
        "len(own) / self.run.spec.batch_size)",
        LOADER + "::test_the_shares_of_ranks_and_micro_batches_are_the_batch_and_weigh_1",
    ),
    fault(
        "the gradient of the step before is kept",
        ENGINE + "_training.py",
        "        self.optimizer.zero_grad()\n",
        "",
        "engine/test_training::test_the_runner_trains_as_a_plain_loop_does",
    ),
    Fault(
        "clipping after the step",
        (
            (
                ENGINE + "_gradients.py",
                "        measured = {}\n",
                f"{STEP}        measured = {{}}\n",
            ),
            (
                ENGINE + "_gradients.py",
                STEP + UPDATE,
                "        self.scaler.update()\n",
            ),
        ),
        (REGIME + "::test_warm_up_clipping_smoothing_and_average_are_torchs",),
    ),
    fault(
        "the warm-up is off by one",
        ENGINE + "_optimizers.py",
        "min(1.0, (step + 1) / rising)",
        "min(1.0, step / rising)",
        REGIME + "::test_warm_up_clipping_smoothing_and_average_are_torchs",
    ),
    fault(
        "the schedule is off by one",
        ENGINE + "_optimizers.py",
        "(step / self.run.steps)",
        "((step + 1) / self.run.steps)",
        "engine/test_training::test_the_runner_trains_as_a_plain_loop_does",
    ),
    fault(
        "the turn of the second optimizer comes a step late",
        ENGINE + "_optimizers.py",
        "sum(start <= step for",
        "sum(start < max(step, 1) for",
        REGIME + "::test_two_optimizers_in_turn",
    ),
    fault(
        "an overflown step of float16 is taken",
        ENGINE + "_gradients.py",
        "        self.scaler.step(optimizer)\n",
        "        optimizer.step()\n",
        REGIME + "::test_a_float16_gradient_that_overflows_skips_its_step_and_lowers_the_scale",
    ),
    fault(
        "the optimizer counts a step that the scaler skipped",
        ENGINE + "_gradients.py",
        STEP + UPDATE,
        f"        scale = self.scaler.get_scale()\n{STEP}{UPDATE}"
        "        if self.scaler.get_scale() < scale:\n"
        "            for weight in module.parameters():\n"
        "                weight.grad.zero_()\n"
        "            optimizer.step()\n",
        REGIME + "::test_a_float16_gradient_that_overflows_skips_its_step_and_lowers_the_scale",
    ),
    fault(
        "a scaled gradient is clipped",
        ENGINE + "_gradients.py",
        "            self.scaler.unscale_(optimizer)\n",
        "",
        REGIME + "::test_half_precision_computes_in_it_and_trains",
    ),
    fault(
        "probes compare the weights with themselves",
        ENGINE + "_weights.py",
        "whole(x).clone()",
        "whole(x)",
        "engine/test_training::test_the_measured_step_is_that_of_the_weights",
    ),
)
