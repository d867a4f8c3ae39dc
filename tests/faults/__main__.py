"""Plant faults in a copy of the code, one at a time, and see whether its tests notice.

    python -m tests.faults                     all of them: about an hour on two cores
    python -m tests.faults audit seed clip     those with one of these words in name or place

Before that the tests run on the code without a fault, where they must pass. The exit code is 1 if
they pass with a fault, too.
"""

import argparse
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.faults import ROOT, read_faults

COPIED = ("spherenorm", "theory", "experiments", "tests", "pyproject.toml")
OURS = ("spherenorm", "spherenorm_theory", "spherenorm_experiments", "tests")
PATHS = ("", "theory", "experiments")
"""The folders in which packages lie."""
PATIENCE = os.environ.get("SPHERENORM_PATIENCE", "20")
"""Seconds that a test waits for another process which a fault keeps from ending; a busy machine
needs more."""
LIMIT = 600
"""Seconds for the tests of a fault. Where it keeps them from ending, the suite does not end: it is
noticed."""


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


def run_tests(tests, folder, limit=None):
    """Run tests on the copy in a folder; (exit code, output), and no code if they do not end.

    A child does that which has imported torch already, and nothing of ours.
    """
    with tempfile.TemporaryFile() as output:
        arguments = (list(dict.fromkeys(tests)), folder, output.fileno())
        child = multiprocessing.get_context("fork").Process(target=_test, args=arguments)
        child.start()
        child.join(limit)
        if child.is_alive():
            os.killpg(child.pid, signal.SIGKILL)  # with the processes of its tests
            child.join()
            return None, f"the tests did not end within {limit} s"
        output.seek(0)
        return child.exitcode, output.read().decode()


def _test(tests, folder, output):
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    ours = [str(folder / name) for name in PATHS]
    os.environ |= {"SPHERENORM_PATIENCE": PATIENCE, "PYTHONPATH": os.pathsep.join(ours)}
    theirs = {"", *(str(ROOT / name) for name in PATHS)}
    sys.path[:] = [*ours, *(path for path in sys.path if path not in theirs)]
    for name in list(sys.modules):
        if name.partition(".")[0] in OURS:
            del sys.modules[name]
    os._exit(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]))


def noticed(fault, base):
    """The first test that fails with this fault, or None; and what pytest printed."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "planted"
        copy_code(base, folder)
        fault.plant(folder)
        code, output = run_tests(fault.tests, folder, LIMIT)
    if code is None:
        return output, output
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return (failed[1] if failed else "?") if code == 1 else None, output


def judge(faults, root, jobs):
    """Run the tests without a fault, then with each; the exit code."""
    base = root / "base"
    copy_code(ROOT, base)
    code, output = run_tests(sorted(test for fault in faults for test in fault.tests), base)
    if code != 0:
        print(f"without a fault the tests do not pass:\n{output}")
        return 2
    missed = 0
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda fault: noticed(fault, base), faults)
        for fault, (test, output) in zip(faults, found, strict=True):
            print(f"{fault.name:60} {test or 'NOT NOTICED'}", flush=True)
            if test is None:
                missed += 1
                print(output[-2000:])
    print(f"{len(faults) - missed} of {len(faults)} faults noticed")
    return bool(missed)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("words", nargs="*", help="only faults with one of these in name or place")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    words = set(given.words)
    faults = read_faults()
    chosen = [
        f for f in faults if not words or words & {*re.findall(r"\w+", f"{f.name} {f.place}")}
    ]
    if not chosen:
        parser.error(f"no fault has one of the words {sorted(words)} in its name or place")
    with tempfile.TemporaryDirectory() as root:
        sys.exit(judge(chosen, Path(root), given.jobs))


if __name__ == "__main__":
    main()
