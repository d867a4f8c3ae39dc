"""Two processes that train one run: DDP on the CPU."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import pytest
import torch
from ranked import pair_of, run, run_until
from running import assert_same_end, ended, folder_of, run_of, stop_after
from spherenorm_pictures import picture_spec
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.execute import execute_spec
from spherenorm_experiments.spec import Regime
from spherenorm_experiments.train import Training, score

WARMED = {"task": "spherenorm_odd:Warmed", "options": {}}
PATIENCE = float(os.environ.get("SPHERENORM_PATIENCE", "300"))
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="needs torch.distributed"
)


@pytest.fixture(scope="module")
def pair(forkserver):
    with pair_of(forkserver) as pair:
        yield pair


def plain_spec(recipe="adamp", **regime):
    """The mathematics of a run without BatchNorm, dropout or augmentation in the model."""
    spec = picture_spec(recipe, epochs=2, noisy=False)
    return replace(spec, regime=Regime(**regime))


def losses(spec, root):
    return [record["loss"] for record in folder_of(spec, root).records()]


OPTIONS = plain_spec("sgdg", micro_batches=3, clip_norm=0.5)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The root of runs of one process."""
    root = tmp_path_factory.mktemp("alone")
    for spec in (plain_spec(), OPTIONS):
        assert execute_spec(spec, root).state == "finished"
    return root


def test_two_processes_compute_what_one_does(tmp_path, pair, alone):
    """37 items in batches of 8: the last batch of 5 is divided into 3 and 2, and weighted."""
    assert pair(run, OPTIONS, tmp_path, workers=0) == ["finished", "finished"]
    assert losses(OPTIONS, tmp_path) == pytest.approx(losses(OPTIONS, alone), abs=1e-6)
    found, expected = (folder_of(OPTIONS, root).summary() for root in (tmp_path, alone))
    assert found["test_metrics"] == pytest.approx(expected["test_metrics"], rel=1e-4)
    assert found["processes"] == 2
    assert found["norm_last"] == pytest.approx(expected["norm_last"], rel=1e-5)


@pytest.mark.parametrize("of", [{}, WARMED], ids=["averaged", "warmed"])
def test_a_run_of_two_processes_resumes_exactly_buffers_included(tmp_path, pair, of):
    """With BatchNorm and dropout, in the middle of an epoch.

    The statistics of BatchNorm differ between ranks, which no training loss shows. Without the
    broadcast before a checkpoint, those of any rank would be saved; so would their averages.
    """
    spec = replace(picture_spec(epochs=2, averaged=True), **of)
    assert pair(run, spec, tmp_path / "whole") == ["finished", "finished"]
    assert pair(run_until, spec, tmp_path, 3) == [3, 3]
    assert pair(run, spec, tmp_path) == ["finished", "finished"]
    assert_same_end(ended(spec, tmp_path), ended(spec, tmp_path / "whole"))


def statistics(ranks, spec, root):
    """Of both ranks, BatchNorm's running means before and after they are evaluated or saved."""
    resolved = run_of(spec, root)
    training = Training(resolved, resolved.task, ranks)

    def now():
        parts = training.module.live[1], training.module.average.module[1]
        return [part.running_mean.tolist() for part in parts]

    for step in range(4):
        training.step(step)
    own = now()
    score(training, resolved.splits.validation)
    evaluated = now()
    training.step(4)
    training.state()
    return own, evaluated, now()


def test_buffers_are_rank_0s_where_they_are_evaluated_or_saved(tmp_path, pair):
    (own, evaluated, saved), (others, also_evaluated, also_saved) = pair(
        statistics, picture_spec(averaged=True), tmp_path
    )
    assert own[0] != others[0]
    assert own[1] != others[1]
    assert evaluated == also_evaluated == own
    assert saved == also_saved


def test_a_checkpoint_loads_in_another_number_of_processes(tmp_path, pair, alone):
    spec = plain_spec()
    assert pair(run_until, spec, tmp_path, 3) == [3, 3]
    assert execute_spec(spec, tmp_path).state == "finished"
    assert losses(spec, tmp_path) == pytest.approx(losses(spec, alone), abs=1e-6)
    back = tmp_path / "back"
    stop_after(spec, back, 7)
    before = losses(spec, back)[:7]
    # Modules of other tests, which were loaded here and whose files are gone, are code of this run.
    assert pair(run, spec, back, accept_code=True) == ["finished", "finished"]
    assert losses(spec, back)[:7] == before
    assert losses(spec, back) == pytest.approx(losses(spec, alone), abs=1e-6)


def test_rank_0_holds_the_folder_for_all(tmp_path, pair):
    spec = plain_spec()
    with folder_of(spec, tmp_path).lock():
        assert pair(run, spec, tmp_path) == ["busy", "busy"]


def test_a_recipe_that_raises_fails_its_run_in_all_processes(tmp_path, pair):
    spec = replace(plain_spec(), recipe="spherenorm_tiny:raising", hyper_parameters={"lr": 0.1})
    first, second = pair(run, spec, tmp_path)
    assert first == second
    assert first.startswith("RuntimeError: this recipe gave up (spherenorm_tiny.py, line ")
    assert folder_of(spec, tmp_path).status()["state"] == "failed"


@pytest.mark.long
def test_the_flag_processes_starts_them(tmp_path):
    """On a model without BatchNorm or dropout, and a score that needs no library."""
    spec = replace(tiny_spec("sgd"), task="spherenorm_odd:Bounded", options={})
    assert execute_spec(spec, tmp_path / "alone").state == "finished"
    outcome = execute_spec(spec, tmp_path, processes=2)
    assert outcome.state == "finished", outcome.error
    assert losses(spec, tmp_path) == pytest.approx(losses(spec, tmp_path / "alone"), abs=1e-6)
    assert execute_spec(spec, tmp_path, processes=2).cached


def test_a_process_whose_launcher_is_killed_ends(tmp_path):
    """Else a restart would be a second writer in a run's folder."""
    child = """
        import os, sys, time
        from spherenorm_experiments.run import die_with_parent
        die_with_parent()
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    """
    (tmp_path / "child.py").write_text(textwrap.dedent(child))
    parent = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"
    note = tmp_path / "pid"
    launcher = subprocess.Popen(
        [sys.executable, "-c", parent, str(tmp_path / "child.py"), str(note)]
    )
    pid = int(_wait_for(lambda: note.exists() and note.read_text()))
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    _wait_for(lambda: not _alive(pid))


def _wait_for(condition):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise TimeoutError


def _alive(pid):
    """True if a process runs; a zombie, whose parent has not asked for it, does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
