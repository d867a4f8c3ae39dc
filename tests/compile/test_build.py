"""Builds that fail, are killed, meet, or cannot be kept."""

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from filelock import Timeout

from spherenorm import optim
from spherenorm.compile.cpp import _build as build
from tests.harness.rows import parameters, set_gradients

pytestmark = [
    pytest.mark.skipif(not shutil.which("g++"), reason="no g++"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="shell scripts, forks and locks of POSIX"),
    # Of Python, about threads that a child lacks; the tests' children do without them.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

SOURCE = 'extern "C" void step() {}'
LONG = 60
"""Seconds that a test does not last, unless it waits where it should not."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache of disk and of process."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    monkeypatch.setenv("SPHERENORM_CACHE", str(folder))
    forget()
    yield folder
    forget()


def forget():
    build._failed.clear()
    for kept in (build.load_step, build._target, build._warn_of_cache):
        kept.cache_clear()


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Put a script in the place of the compiler; returns the commands to compile so far.

    `macros` is what it does if it is asked for its macros, `body` if it compiles. `$LAST` is the
    file to make.
    """
    script, log = tmp_path / "compiler", tmp_path / "log"
    log.touch()

    def make(body, macros='exec g++ "$@"'):
        script.write_text(
            "#!/bin/sh\n"
            f'case " $* " in *" -dM "*) {macros};; esac\n'
            f'echo "$@" >> {log}\nfor LAST; do :; done\n{body}\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        return lambda: log.read_text().splitlines()

    return make


def compile_slowly(seconds):
    return f'sleep {seconds}; exec g++ "$@"'


@pytest.mark.filterwarnings("ignore:kernels cannot be kept")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo note >&2; echo 'step.cpp:1: error: no such thing' >&2; exit 1", "no such thing$"),
        ("exit 3", "it said nothing$"),
        ("echo half > $LAST; kill -9 $$", "was ended by signal 9$"),
        ("echo half > $LAST", "cannot be loaded: .*"),
        ("exit 0", "without a library$"),
        ("exec g++ -shared -fPIC -x c++ /dev/null -o $LAST", "cannot be loaded: .*step"),
    ],
    ids=["refuses", "fails silently", "is killed", "half", "nothing", "no step"],
)
def test_a_failed_build_leaves_nothing_and_is_not_tried_again(compiler, cache, body, message):
    commands = compiler(body)
    for _ in range(2):
        with pytest.raises(build.BuildError, match=message) as raised:
            build.load_step(SOURCE, ())
        assert "\n" not in str(raised.value)
    tried = 2 if "loaded" in message else 1  # elsewhere, too
    assert len(commands()) == tried
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("macros", ["exit 1", "kill -9 $$"])
def test_a_compiler_that_tells_no_macros(compiler, macros):
    commands = compiler('exec g++ "$@"', macros)
    with pytest.raises(build.BuildError):
        build.load_step(SOURCE, ())
    assert commands() == []


def test_a_compiler_that_cannot_be_run(tmp_path, monkeypatch):
    script = tmp_path / "compiler"
    script.write_text("#!/nonexistent/interpreter\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(build.BuildError, match="cannot be run: No such file"):
        build.load_step(SOURCE, ())


def test_a_compiler_that_hangs_is_stopped_with_what_it_runs(compiler, cache, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "PATIENCE", 0.5)
    compiler(f"sleep {LONG} & echo $! > {tmp_path}/pid; wait", "exit 0")
    with pytest.raises(build.BuildError, match=r"has not ended after 0\.5 s"):
        build.load_step(SOURCE, ())
    assert ends(int((tmp_path / "pid").read_text()))
    assert list(cache.iterdir()) == []


def ends(pid):
    """True if the process is gone soon, or waits for nothing but its parent."""
    status = Path(f"/proc/{pid}/status")
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if "State:\tZ" not in status.read_text():
                time.sleep(0.05)
                continue
        return True
    return False


def test_an_interrupt_stops_the_compiler(compiler, cache, tmp_path):
    compiler(f"echo $$ > {tmp_path}/pid; sleep 0.5; kill -INT {os.getpid()}; sleep {LONG}")
    # A shell's job in the background ignores interrupts, and so would its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            build.load_step(SOURCE, ())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ends(int((tmp_path / "pid").read_text()))
    assert list(cache.iterdir()) == []
    assert not build._failed


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


def test_processes_and_threads_that_start_at_once_build_once(compiler, cache):
    commands = compiler(compile_slowly(0.3))
    children = [forked(lambda: build.load_step(SOURCE, ())) for _ in range(3)]
    steps = []
    threads = [
        threading.Thread(target=lambda: steps.append(build.load_step(SOURCE, ()))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(steps) == 3
    ended = [succeeds(child) for child in children]
    assert all(ended)
    assert len(commands()) == 1
    assert [path.suffix for path in cache.iterdir()] == [".so"]


def test_a_killed_holder_of_the_lock_blocks_nobody(compiler, cache, tmp_path):
    compiler(f"echo $$ > {tmp_path}/pid; sleep {LONG}", "exit 0")
    child = forked(lambda: build.load_step(SOURCE, ()))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # which the child has started
    assert len(list(cache.iterdir())) == 2  # its lock and its folder
    compiler('exec g++ "$@"', "exit 0")
    begin = time.monotonic()
    build.load_step(SOURCE, ())
    assert time.monotonic() - begin < build.PATIENCE / 2
    assert [path.suffix for path in cache.iterdir()] == [".so"]


@pytest.mark.parametrize("error", [Timeout("kernel.lock"), OSError("no locks available")])
def test_whoever_gets_no_lock_builds_beside(error, cache, monkeypatch):
    """A process that was forked during a build may hold its lock for good."""

    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(build.FileLock, "acquire", refuse)
    build.load_step(SOURCE, ())
    assert [path.suffix for path in cache.iterdir()] == [".so"]


def test_a_damaged_library_is_built_anew(cache):
    build.load_step(SOURCE, ())
    (library,) = cache.iterdir()
    library.unlink()  # (a loaded one must not be written to)
    library.write_bytes(b"\x7fELF")
    forget()
    build.load_step(SOURCE, ())
    assert [path.name for path in cache.iterdir()] == [library.name]
    assert library.stat().st_size > 1000


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPHERENORM_CACHE", str(tmp_path / "file" / "kernels"))
    with pytest.warns(UserWarning, match=r"cannot be kept in .*Not a directory.*SPHERENORM_CACHE"):
        build.load_step(SOURCE, ())
    with warnings.catch_warnings():  # once a process
        warnings.simplefilter("error")
        build.load_step(SOURCE + "\n", ())


def test_a_read_only_cache(monkeypatch):
    """Libraries that it holds are loaded; others are built elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("SPHERENORM_CACHE", folder)
        build.load_step(SOURCE, ())
        kept = os.listdir(folder)
        Path(folder).chmod(0o555)

        def use():
            if os.getuid() == 0:  # who may write anywhere
                os.setuid(65534)
            forget()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                build.load_step(SOURCE, ())
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                build.load_step(SOURCE + "\n", ())
            assert "Permission denied" in str(said[0].message)

        assert succeeds(forked(use))
        assert os.listdir(folder) == kept
        Path(folder).chmod(0o755)


def test_machines_of_other_instructions_share_no_kernels(compiler, cache):
    commands = []
    for name in ("__AVX512F__", "__ARM_FEATURE_SVE", "__ARM_FEATURE_SVE"):
        commands = compiler('exec g++ "$@"', f"echo '#define {name} 1'; exit 0")
        forget()
        build.load_step(SOURCE, ())
    assert len(commands()) == len(list(cache.iterdir())) == 2
    assert "-march=native" in commands()[0]


def test_a_fork_after_a_step():
    """OpenMP of a forked process waits for threads that its parent had."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        weights = parameters()
        optimizer = optim.AdamP(weights, lr=0.1, backend="compiled")
        set_gradients(weights, 0)
        optimizer.step()
        set_gradients(weights, 1)
        assert succeeds(forked(optimizer.step))
        optimizer.step()
    finally:
        torch.set_num_threads(before)


def test_two_optimizers_in_two_threads():
    def train(found):
        weights = parameters()
        for cls in (optim.AdamP, optim.SGD):
            optimizer = cls(weights, lr=0.1, backend="compiled")
            for step in range(3):
                set_gradients(weights, step)
                optimizer.step()
        found.append([w.detach() for w in weights])

    alone, together = [], []
    threads = [threading.Thread(target=train, args=(together,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    train(alone)
    assert len(together) == 2
    for found in together:
        assert all(map(torch.equal, found, alone[0]))
