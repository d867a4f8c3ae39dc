"""Mends of the engine undone, one at a time."""

from tests.experiments.planted._fault import CORE, ENGINE, fault

__all__ = ["MENDING"]

EXECUTE = "engine/test_execute"
REHEARSAL = "engine/test_rehearsal"
USERS = "cli/test_users_code"

MENDING = (
    fault(
        "a recipe may make another rule each time",
        CORE + "_recipes.py",
        "    if made != again:",
        "    if False:",
        "core/test_spec::test_a_recipe_that_makes_another_rule_each_time_is_refused",
    ),
    fault(
        "a worker that dies ends the campaign",
        ENGINE + "_pool.py",
        "            return self._died(run, process, timer)\n",
        '            raise RuntimeError("a worker died")\n',
        "engine/test_pool::test_a_process_that_dies_fails_its_own_run",
    ),
    fault(
        "a time limit is not told from another death",
        ENGINE + "_pool.py",
        "        self.expired = True\n",
        "",
        "engine/test_pool::test_a_run_that_takes_longer_than_its_limit_is_stopped",
    ),
    fault(
        "a run of a pure task is not seeded",
        ENGINE + "_sweep.py",
        '    seed_everything(stream(seed, "init"), device)\n',
        "",
        "engine/test_sweep",
    ),
    fault(
        "a metric that is no number is a divergence",
        ENGINE + "_loop.py",
        "if lacking and training.survived():",
        "if False:",
        EXECUTE + "::test_a_metric_that_is_no_number_is_an_error_of_its_task_and_no_divergence",
    ),
    fault(
        "a probe that has no number is a divergence",
        ENGINE + "_training.py",
        "if len(known) < len(measured) and self.survived() else",
        "if False else",
        EXECUTE + "::test_a_probe_without_a_number_is_no_divergence",
    ),
    fault(
        "a sharded checkpoint loses a buffer that has grown",
        ENGINE + "_checkpoints.py",
        "        if own not in model or model[own].shape != kept.size:\n",
        "        if False:\n",
        "engine/test_ranks::test_a_run_of_two_processes_resumes_exactly_buffers_included",
    ),
    fault(
        "items draw from a generator of their own",
        CORE + "_task.py",
        "    if len(set(found)) > 1:",
        "    if False:",
        EXECUTE + "::test_items_with_a_generator_of_their_own_are_refused",
    ),
    fault(
        "requests in the order of their files",
        "spherenorm_experiments/study/_plan.py",
        "key=lambda name: (_number(contents[name]), name)",
        'key=lambda name: (folder / f"{name}.json").stat().st_mtime',
        "study/test_requests",
    ),
    fault(
        "a run forgets its sources, versions and hardware",
        ENGINE + "_loop.py",
        "        keep_origin(run, backend=training.turns.backend)\n",
        "",
        EXECUTE + "::test_a_run_keeps_its_sources_versions_and_hardware",
    ),
    fault(
        "no step before a campaign",
        ENGINE + "_rehearsal.py",
        "            if alone:\n",
        "            if False:\n",
        REHEARSAL,
    ),
    fault(
        "no record as JSON before a campaign",
        ENGINE + "_rehearsal.py",
        "        json.dumps(record)\n",
        "",
        REHEARSAL,
    ),
    fault(
        "errors without file and line",
        "spherenorm/_located.py",
        'return f"{one_line(error)}{place}"',
        "return one_line(error)",
        REHEARSAL,
    ),
    fault(
        "detection records every channel of a large model",
        ENGINE + "_probes.py",
        "only_largest = channels > MOST_CHANNELS",
        "only_largest = False",
        "engine/test_records::test_detection_of_a_large_model_records_the_largest_channel",
    ),
    fault(
        "half-written files are left",
        ENGINE + "_execute.py",
        "            delete_leftovers(run.folder.path)\n",
        "",
        EXECUTE + "::test_what_a_killed_process_left_half_written_is_deleted",
    ),
    fault(
        "an unreadable file is a traceback",
        "spherenorm_experiments/files.py",
        "    except OSError as error:  # a missing permission",
        "    except InterruptedError as error:  # a missing permission",
        EXECUTE + "::test_a_file_that_cannot_be_read_is_an_error_of_the_store",
    ),
    fault(
        "a long name makes a path that is too long",
        CORE + "_identity.py",
        "readable[:LONGEST]",
        "readable",
        EXECUTE + "::test_a_long_name_of_a_recipe_makes_no_path_that_is_too_long",
    ),
    fault(
        "data that are made at each call are not read again",
        CORE + "_identity.py",
        "kept = all(map(_is_same, *splits))",
        "kept = True",
        EXECUTE + "::test_data_that_are_drawn_anew_on_each_call_are_refused",
    ),
    fault(
        "a part that is left in evaluation mode stays there",
        ENGINE + "_weights.py",
        "return module.training and all(part is None or is_training(part) for part in parts)",
        "return module.training",
        "engine/test_training::test_each_step_begins_in_training_mode",
    ),
    fault(
        "a cluster does not keep the time limit",
        "spherenorm_experiments/engine/door.py",
        "if runner.time_limit is not None:",
        "if False:",
        "engine/test_backends::test_the_time_limit_holds_on_a_cluster",
    ),
    fault(
        "an optimizer's own range is not searched",
        "spherenorm_experiments/study/_plan.py",
        "for (owner, _, name), bounds in split if owner == optimizer}",
        "for (owner, _, name), bounds in split if name in common}",
        "cli/test_compare::test_an_optimizer_is_tuned_in_ranges_of_its_own",
    ),
    fault(
        "a module that exits ends the program",
        CORE + "_errors.py",
        "    except (Exception, SystemExit) as error:\n        said",
        "    except Exception as error:\n        said",
        "core/test_spec::test_a_module_that_exits_does_not_end_the_program",
    ),
    fault(
        "spaces between optimizers count",
        "spherenorm_experiments/study/_comparing.py",
        "name.strip() for name in",
        "name for name in",
        USERS,
    ),
    fault(
        "a print is part of the JSON",
        "spherenorm_experiments/cli/_console.py",
        "with redirect_stdout(sys.stderr):",
        "with redirect_stdout(sys.stdout):",
        USERS,
    ),
)
