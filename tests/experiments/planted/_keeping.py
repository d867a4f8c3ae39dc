"""Faults of keeping: identity, checkpoints and files, several processes."""

from tests.experiments.planted._fault import CORE, ENGINE, Fault, fault

__all__ = ["KEEPING"]

SEEDS = "engine/test_seeds"
REGIME = "engine/test_regime"
LOADER = "engine/test_loader"
EXECUTE = "engine/test_execute"
RANKS = "engine/test_ranks"
IDENTITY = "core/test_sources"

SPEC = "        **spec.to_json(),\n"

KEEPING = (
    # identity
    Fault(
        "a hash without the schedule",
        (
            (
                CORE + "_identity.py",
                SPEC,
                '        **{**spec.to_json(), "schedule": ""},\n',
            ),
            (CORE + "_identity.py", '"schedule": [SCHEDULES[spec.schedule]]', '"schedule": []'),
        ),
        (IDENTITY,),
    ),
    fault(
        "a hash without the batch size",
        CORE + "_identity.py",
        SPEC,
        '        **{**spec.to_json(), "batch_size": 0},\n',
        IDENTITY,
    ),
    Fault(
        "a hash without the names of the probes",
        (
            (
                CORE + "_identity.py",
                SPEC,
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
        '        "data": _data_fingerprint(task, os.environ.get(FOLDER)),\n',
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
        "a run's name leaves its seed out",
        CORE + "_identity.py",
        "digest([*rules[key], row.seed])",
        "digest(rules[key])",
        "engine/test_sweep::test_a_run_has_one_name_however_it_is_asked_for",
    ),
    fault(
        "what has ended is computed again",
        "spherenorm_experiments/study/_campaign.py",
        "specs_without(run.spec, done)",
        "specs_without(run.spec, set())",
        "study/test_rows",
    ),
    fault(
        "runs of one computation change places",
        ENGINE + "_sweep.py",
        "values.detach().flatten(0, 1)",
        "values.detach().transpose(0, 1).flatten(0, 1)",
        "engine/test_sweep",
    ),
    fault(
        "a hash without the regime",
        CORE + "_spec.py",
        "            if not content[name]:\n",
        "            if True:\n",
        REGIME + "::test_an_option_is_part_of_the_identity_only_if_it_is_not_the_default",
    ),
    fault(
        "a worker stores its own code under the name of another's",
        "spherenorm_experiments/engine/door.py",
        "    if expected and run.id != expected:",
        "    if False:",
        "engine/test_pool::test_a_worker_refuses_a_run_that_is_another_one_there",
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
        "../test_support::test_a_file_is_written_whole_or_not_at_all",
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
        "spherenorm_experiments/files.py",
        'intact = known in ("", owner) and _checksum',
        "intact = _checksum",
        EXECUTE + "::test_files_of_another_run_are_set_aside",
    ),
    fault(
        "two processes hold one run",
        "spherenorm_experiments/files.py",
        "        lock.acquire()\n",
        "        pass\n",
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
