"""Shared by the experiment tests: modules here and the studies, importable in children."""

import multiprocessing.forkserver
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from spherenorm_experiments.store import Store

HERE = str(Path(__file__).parent)
ROOT = Path(__file__).parents[2]
STUDIES = str(ROOT / "experiments" / "studies")
PATHS = [HERE, STUDIES, *(str(ROOT / name) for name in ("", "theory", "experiments"))]
sys.path[:0] = [HERE, STUDIES]
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """One for all studies and all workers: what two of them share, or two tests, runs once."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # whose own folder lies in that of the whole run
        root = root.parent
    return Store(root / "studies")


@pytest.fixture(scope="session")
def _tiny_store(tmp_path_factory):
    from commands import run_tiny

    root = tmp_path_factory.mktemp("tiny")
    assert run_tiny(root).exit_code == 0
    return root


@pytest.fixture
def ran(tmp_path, _tiny_store):
    """A store of the test's own, in which the tiny study has run."""
    return shutil.copytree(_tiny_store, tmp_path / "ran")


@pytest.fixture(scope="session")
def forkserver():
    """Child processes that start fast: torch is imported once, in their common parent."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spherenorm_warm", "spherenorm_experiments.study"])
    multiprocessing.forkserver.ensure_running()  # also of the pools that a test begins first
    return context
