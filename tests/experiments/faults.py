"""Faults planted in the engine, each of which a test must notice.

    python -m tests.experiments.faults              all of them
    python -m tests.experiments.faults seed clip    those whose names have one of these words

A fault is an edit of a copy of the code; the tests that should notice it run on the copy. Before
that they run on the code without a fault, where they must pass.
"""

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.experiments.planted import FAULTS, Fault

ROOT = Path(__file__).parents[2]
COPIED = ("spherenorm", "spherenorm_theory", "spherenorm_experiments", "tests", "pyproject.toml")
PATIENCE = os.environ.get("SPHERENORM_PATIENCE", "20")
"""Seconds that a test waits for another process which a fault keeps from ending; a busy machine
needs more."""


class Verdict(NamedTuple):
    """If the tests of a fault failed, and what they printed."""

    noticed: bool
    output: str


def copy_code(source_root, folder):
    """Copy what the tests of a fault need to a new folder."""
    folder.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", ".*_cache")
    for name in COPIED:
        source = source_root / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copyfile(source, folder / name)


def plant(fault: Fault, folder: Path):
    """Edit the copy in a folder."""
    for file, old, new in fault.edits:
        path = folder / file
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{fault.name}: {file} has {old!r} {text.count(old)} times")
        path.write_text(text.replace(old, new))


def run_tests(tests, folder):
    """Run tests on the copy in a folder; (exit code, output).

    A child does that which has imported torch already, and nothing of ours.
    """
    with tempfile.TemporaryFile() as output:
        arguments = (tests, folder, output.fileno())
        child = multiprocessing.get_context("fork").Process(target=_test, args=arguments)
        child.start()
        child.join()
        output.seek(0)
        return child.exitcode, output.read().decode()


def _test(tests, folder, output):
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    os.environ |= {"SPHERENORM_PATIENCE": PATIENCE, "PYTHONPATH": str(folder)}
    sys.path[:] = [str(folder), *(path for path in sys.path if path not in ("", str(ROOT)))]
    for name in list(sys.modules):
        if name.partition(".")[0] in COPIED:
            del sys.modules[name]
    os._exit(pytest.main(["-x", "-q", "-n", "0", *tests]))


def verdict_on(fault, base):
    """Plant a fault and run its tests; pytest ends with 1 if one failed."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "planted"
        copy_code(base, folder)
        plant(fault, folder)
        code, output = run_tests(fault.tests, folder)
    return Verdict(code == 1, output)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only faults whose names have one of these")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    words = set(arguments.words)
    chosen = [fault for fault in FAULTS if not words or words & set(fault.name.split())]
    if not chosen:
        parser.error(f"no fault has one of the words {sorted(words)} in its name")
    with tempfile.TemporaryDirectory() as root:
        sys.exit(judge(chosen, Path(root), arguments.jobs))


def judge(faults, root, jobs):
    """Run the tests without a fault, then with each; the exit code."""
    base = root / "base"
    copy_code(ROOT, base)
    code, output = run_tests(sorted({test for fault in faults for test in fault.tests}), base)
    if code != 0:
        print(f"without a fault the tests do not pass:\n{output}")
        return 2
    unnoticed = []
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda fault: verdict_on(fault, base), faults)
        for fault, verdict in zip(faults, found, strict=True):
            print(f"{'noticed' if verdict.noticed else 'NOT NOTICED':12}{fault.name}", flush=True)
            if not verdict.noticed:
                unnoticed.append(fault.name)
                print(verdict.output[-2000:])
    print(f"{len(faults) - len(unnoticed)} of {len(faults)} faults noticed")
    return bool(unnoticed)


if __name__ == "__main__":
    main()
