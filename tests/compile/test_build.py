"""Builds that fail, meet, or cannot be kept: the step is right without a kernel, and says why."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import time
import warnings

import pytest
import torch

import spherenorm as sn
from spherenorm.compile import kernel as kernel_module
from tests.compile.twins import Twins, drawn, paths
from tests.compile.written import new_recipe

pytestmark = [
    pytest.mark.skipif(not shutil.which("g++"), reason="no g++"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="shell scripts and forks of POSIX"),
    # Of Python, about threads that a child lacks; the tests' children do without them.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:optimizers step by"),
]
LONG = 120
"""Seconds that a test does not last, unless it waits where it should not."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty folder of kernels."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    monkeypatch.setenv("SPHERENORM_CACHE", str(folder))
    return folder


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Put a script in the place of the compiler; returns the commands to compile so far.

    `macros` is what it does if it is asked for its macros, `body` if it compiles. `$LAST` is the
    file to make.
    """
    script, log = tmp_path / "compiler", tmp_path / "log"
    log.touch()

    def make(body='exec g++ "$@"', macros='exec g++ "$@"'):
        script.write_text(
            "#!/bin/sh\n"
            f'case " $* " in *" -dM "*) {macros};; esac\n'
            f'echo "$@" >> {log}\nfor LAST; do :; done\n{body}\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        return lambda: log.read_text().splitlines()

    return make


def train(recipe, backend="auto"):
    """Two steps, which must agree with the rule's own code; returns their path."""
    twins = Twins(sn.torch_optimizer(recipe, "Built"), drawn([(4, 3)]), backend)
    for step in range(2):
        twins.step(step=step)
    twins.agree()
    (path,) = twins.paths
    return path


FAILURES = {
    "refuses": ("echo note >&2; echo 'step.cpp:1: error: no such thing' >&2; exit 1", "such thing"),
    "fails silently": ("exit 3", "compiler"),
    "is killed": ("echo half > $LAST; kill -9 $$", "9"),
    "half a library": ("echo half > $LAST", "loaded"),
    "no library": ("exit 0", "library"),
    "no step": ("exec g++ -shared -fPIC -x c++ /dev/null -o $LAST", "loaded"),
}


@pytest.mark.filterwarnings("ignore:kernels cannot be kept")
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_build_leaves_nothing_and_the_step_is_right(failure, compiler, cache):
    body, reason = FAILURES[failure]
    commands = compiler(body)
    recipe = new_recipe()
    assert train(recipe) == "rule"
    tried = len(commands())
    assert train(recipe, "compiled") == "stack"
    assert len(commands()) == tried, "what failed is not tried again"
    assert list(cache.iterdir()) == []
    optimizer = sn.torch_optimizer(recipe)(drawn([(4, 3)]))
    (line,) = sn.explain(optimizer)
    assert reason in line.reason


@pytest.mark.parametrize("way", ["none", "no interpreter", "no macros"])
def test_without_a_working_compiler_the_step_is_right(way, compiler, tmp_path, monkeypatch):
    compiler(macros="exit 1")
    if way == "none":
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CXX")
    if way == "no interpreter":
        (tmp_path / "compiler").write_text("#!/nonexistent/interpreter\n")
    assert train(new_recipe()) == "rule"


def heard():
    """The warnings of two recipes' first steps."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(new_recipe())
        train(new_recipe())
    return [str(each.message) for each in caught if "own code" in str(each.message)]


def test_a_lack_of_a_compiler_is_said_once(compiler):
    compiler("exit 3")
    assert len(heard()) <= 1  # another test may have heard it
    assert heard() == []


def forked(function):
    """Run it in a child; returns the child's id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    return child


def succeeds(child):
    """True if the child ends without an error; one that does not end is killed."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def kernel(recipe):
    def run():
        assert train(recipe) == "C++ kernel"

    return run


def test_a_compiler_without_openmp_makes_a_kernel_of_one_thread(compiler, monkeypatch):
    flags = tuple(f for f in kernel_module.FLAGS if f not in kernel_module.OPENMP)
    monkeypatch.setattr(kernel_module, "FLAGS", flags)
    commands = compiler('case "$*" in *openmp*) exit 1;; esac; exec g++ "$@"')
    monkeypatch.setattr(kernel_module, "threads", lambda: 2)
    assert train(new_recipe()) == "C++ kernel"
    assert commands()


def test_processes_that_build_at_once_and_later_ones(compiler, cache):
    """All are right; one library is left, and who comes later compiles nothing."""
    commands = compiler('sleep 0.3; exec g++ "$@"')
    recipe = new_recipe()
    children = [forked(kernel(recipe)) for _ in range(2)]
    assert [succeeds(child) for child in children] == [True, True]
    assert [path.suffix for path in cache.iterdir()] == [".so"]
    built = len(commands())
    kernel(recipe)()
    assert len(commands()) == built


def test_neither_values_nor_shapes_compile_again(compiler):
    """One kernel for weights of rows, and at most one for vectors."""
    commands = compiler()
    weights = [w.requires_grad_() for w in drawn([(7, 5), (11, 3, 2, 2), (4,)])]
    optimizer = sn.torch_optimizer(new_recipe())(weights, backend="compiled")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    counts = []
    for step in range(4):
        if step == 2:
            optimizer.param_groups[0]["lr"] = 0.0
            (late,) = drawn([(9, 8)])
            optimizer.add_param_group({"params": [late.requires_grad_()], "lr": 0.2})
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.grad = torch.ones_like(weight)
        optimizer.step()
        scheduler.step()
        counts.append(len(commands()))
    assert len(set(counts)) == 1
    assert 1 <= counts[0] <= 2


def test_a_half_written_library_is_built_anew(cache):
    recipe = new_recipe()
    assert succeeds(forked(kernel(recipe)))
    (library,) = cache.iterdir()
    library.unlink()
    library.write_bytes(b"\x7fELF")
    kernel(recipe)()
    assert [path.name for path in cache.iterdir()] == [library.name]
    assert library.stat().st_size > 1000


def test_machines_of_other_instructions_share_no_kernels(compiler, cache):
    recipe = new_recipe()
    for name in ("__AVX512F__", "__ARM_FEATURE_SVE", "__ARM_FEATURE_SVE"):
        commands = compiler(macros=f"echo '#define {name} 1'; exit 0")
        assert succeeds(forked(kernel(recipe)))
    assert len(commands()) == len(list(cache.iterdir())) == 2


def test_a_folder_that_cannot_be_made_is_said_once(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPHERENORM_CACHE", str(tmp_path / "file" / "kernels"))
    with pytest.warns(UserWarning, match="SPHERENORM_CACHE"):
        kernel(new_recipe())()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(new_recipe())()


@pytest.mark.filterwarnings("ignore:kernels cannot be kept")
def test_a_full_disk(cache):
    recipe = new_recipe()

    def use():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        assert train(recipe) == "rule"

    assert succeeds(forked(use))
    assert list(cache.iterdir()) == []


def test_a_fork_after_a_step():
    """OpenMP of a forked process waits for threads that its parent had."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        twins = Twins(sn.torch_optimizer(new_recipe()), drawn([(300, 400), (4, 3)]))
        twins.step()
        assert succeeds(forked(twins.fast_opt.step))
        twins.step(step=1)
        twins.agree()
        assert paths(twins.fast_opt) == {"C++ kernel"}
    finally:
        torch.set_num_threads(before)


def test_an_interrupt_leaves_nothing(compiler, cache):
    compiler(f"kill -INT {os.getpid()}; sleep 5")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), contextlib.suppress(sn.BackendError):
            train(new_recipe())
    finally:
        signal.signal(signal.SIGINT, before)
    assert list(cache.iterdir()) == []
