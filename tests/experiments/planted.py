"""The faults of `python -m tests.experiments.faults`: edits of the code, and who should notice."""

from typing import NamedTuple

CORE, ENGINE = "experiments/core/", "experiments/engine/"


class Fault(NamedTuple):
    """An edit of the code, and the tests that should notice it.

    Attributes:
        name: the fault in words.
        edits: (file, text that it has once, text in place of it).
        tests: files below `tests/experiments`, some with `::name`.
    """

    name: str
    edits: tuple[tuple[str, str, str], ...]
    where: tuple[str, ...]

    @property
    def tests(self):
        return [
            f"tests/experiments/{name}.py" if "::" not in name else _node(name)
            for name in self.where
        ]


def _node(name):
    file, _, test = name.partition("::")
    return f"tests/experiments/{file}.py::{test}"


def fault(name, file, old, new, *where):
    """A fault of one edit."""
    return Fault(name, ((file, old, new),), where)


SEEDS = "engine/test_seeds"
REGIME = "engine/test_regime"
LOADER = "engine/test_loader"
EXECUTE = "engine/test_execute"
RANKS = "engine/test_ranks"
SPLITS = "engine/test_scores"
IDENTITY = "core/test_sources"

FAULTS = (
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
        LOADER + "::test_every_epoch_has_each_item_once_in_an_order_and_an_augmentation_of_its_own",
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
        "self.training.metrics(self.run.splits.validation)",
        "self.training.metrics(self.run.splits.test)",
        SPLITS,
    ),
    fault(
        "the score that selects is of the test set",
        ENGINE + "_loop.py",
        "training.metrics(getattr(run.splits, name))",
        "training.metrics(run.splits.test)",
        SPLITS,
    ),
    fault(
        "the score that is reported is of the validation set",
        ENGINE + "_loop.py",
        "training.metrics(getattr(run.splits, name))",
        "training.metrics(run.splits.validation)",
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
        "experiments/studies/_grid.py",
        "enumerate(self._rows(key)[index]) if i not in taken]",
        "enumerate(self._rows(key)[index]) if i in taken]",
        "studies/test_grid",
    ),
    fault(
        "the worst point of a search",
        "experiments/studies/_grid.py",
        "index = best(scores, key=lambda i: scores[i])",
        "index = (min if best is max else max)(scores, key=lambda i: scores[i])",
        "studies/test_grid",
    ),
    fault(
        "pairs by place",
        "experiments/results/_samples.py",
        "paired = {seed: compare(a[seed], b[seed], how) for seed in sorted(a.keys() & b.keys())}",
        "paired = {s: compare(x, y, how) for s, x, y in zip(a, a.values(), b.values())}",
        "results/test_statistics::test_pairs_are_made_of_the_seeds_that_both_have",
    ),
    # identity
    Fault(
        "a hash without the schedule",
        (
            (
                CORE + "_identity.py",
                "        **spec.to_json(),\n",
                '        **{**spec.to_json(), "schedule": ""},\n',
            ),
            (CORE + "_identity.py", '"schedule": [SCHEDULES[spec.schedule]]', '"schedule": []'),
        ),
        (IDENTITY,),
    ),
    fault(
        "a hash without the batch size",
        CORE + "_identity.py",
        "        **spec.to_json(),\n",
        '        **{**spec.to_json(), "batch_size": 0},\n',
        IDENTITY,
    ),
    Fault(
        "a hash without the names of the probes",
        (
            (
                CORE + "_identity.py",
                "        **spec.to_json(),\n",
                '        **{**spec.to_json(), "probes": ()},\n',
            ),
            (CORE + "_identity.py", '"probe": list(probes)', '"probe": []'),
        ),
        (IDENTITY,),
    ),
    fault(
        "a hash without the sources of the probes",
        CORE + "_identity.py",
        '"probe": list(probes)',
        '"probe": []',
        IDENTITY,
    ),
    fault(
        "a hash without the data",
        CORE + "_identity.py",
        '        "data": _data_fingerprint(task),\n',
        "",
        IDENTITY,
    ),
    fault(
        "a hash without the recipe's sources",
        CORE + "_identity.py",
        '"recipe": [*modules, *_parts(rules)]',
        '"recipe": []',
        IDENTITY,
    ),
    fault(
        "a hash without the regime",
        CORE + "_spec.py",
        '        if not content["regime"]:\n',
        "        if True:\n",
        REGIME + "::test_an_option_is_part_of_the_identity_only_if_it_is_not_the_default",
    ),
    fault(
        "a worker stores its own code under the name of another's",
        "experiments/door.py",
        "    if expected and run.id != expected:",
        "    if False:",
        "engine/test_pool::test_a_worker_refuses_a_run_that_is_another_one_there",
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
                "        self.scaler.step(optimizer)\n        measured = {}\n",
            ),
            (
                ENGINE + "_gradients.py",
                "        self.scaler.step(optimizer)\n        self.scaler.update()\n",
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
        "        self.scaler.step(optimizer)\n        self.scaler.update()\n",
        "        scale = self.scaler.get_scale()\n"
        "        self.scaler.step(optimizer)\n        self.scaler.update()\n"
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
    # checkpoints and files
    fault(
        "the optimizer's state is not restored",
        ENGINE + "_training.py",
        '            if name in state["optimizer"]["state"]:',
        "            if False:",
        EXECUTE + "::test_resuming_does_not_start_again",
    ),
    fault(
        "the average is not in a checkpoint",
        ENGINE + "_training.py",
        'average = {} if self.average is None else {"ema": self.average.tensors}',
        "average: dict[str, Any] = {}",
        REGIME + "::test_with_every_option_a_run_goes_on_where_it_was_interrupted",
    ),
    fault(
        "records after the checkpoint are kept",
        ENGINE + "_records.py",
        "        if len(content) > length:\n",
        "        if False:\n",
        "engine/test_records::test_records_rewind_to_a_mark_that_a_checkpoint_has_kept",
    ),
    fault(
        "files are written in place",
        "spherenorm/_files.py",
        '    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")\n',
        "    temporary = path\n",
        EXECUTE + "::test_a_full_disk_stops_the_run_and_loses_nothing",
    ),
    fault(
        "a damaged file of a finished run is accepted",
        ENGINE + "_store.py",
        "if content is None or sha256(content) != expected:",
        "if content is None:",
        EXECUTE + "::test_a_corrupt_file_of_a_finished_run_is_set_aside_and_the_run_done_again",
    ),
    fault(
        "a file of another run is accepted",
        ENGINE + "_files.py",
        'intact = known in ("", owner) and _checksum',
        "intact = _checksum",
        EXECUTE + "::test_files_of_another_run_are_set_aside",
    ),
    fault(
        "two processes hold one run",
        ENGINE + "_store.py",
        '            with FileLock(self.path / "lock", timeout=wait):\n                yield\n',
        "            yield\n",
        EXECUTE + "::test_two_processes_share_a_run_without_doing_it_twice",
    ),
    fault(
        "a run that explodes in its last step has finished",
        ENGINE + "_loop.py",
        "or (last and not self.training.survived())",
        "or False",
        EXECUTE + "::test_a_run_that_explodes_in_its_last_step_has_diverged",
    ),
    # several processes; the first three are traps of other harnesses
    fault(
        "a distributed checkpoint has the buffers of any rank",
        ENGINE + "_training.py",
        "        self._share_buffers()\n        return self._state",
        "        return self._state",
        RANKS + "::test_buffers_are_rank_0s_where_they_are_evaluated_or_saved",
        RANKS + "::test_a_run_of_two_processes_resumes_exactly_buffers_included",
    ),
    fault(
        "a worker outlives its killed launcher",
        ENGINE + "_ranks.py",
        "    parent = os.getppid()\n",
        "    return\n    parent = os.getppid()\n",
        RANKS + "::test_a_process_whose_launcher_is_killed_ends",
    ),
    fault(
        "each rank records its own loss",
        ENGINE + "_ranks.py",
        "        torch.distributed.all_reduce(sums)\n",
        "",
        RANKS + "::test_two_processes_compute_what_one_does",
    ),
    fault(
        "each rank evaluates with buffers of its own",
        ENGINE + "_training.py",
        "        self._share_buffers()\n        self.module.eval()",
        "        self.module.eval()",
        RANKS + "::test_buffers_are_rank_0s_where_they_are_evaluated_or_saved",
    ),
    fault(
        "all ranks train on the share of the first",
        ENGINE + "_loader.py",
        "own = part[self.ranks.rank :: self.ranks.world]",
        "own = part[:: self.ranks.world]",
        LOADER + "::test_the_shares_of_ranks_and_micro_batches_are_the_batch_and_weigh_1",
    ),
    fault(
        "the noise is the same in each rank",
        ENGINE + "_gradients.py",
        "key = (step, number, self.ranks.rank)",
        "key = (step, number, 0)",
        SEEDS,
    ),
)
