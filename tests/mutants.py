"""Measure the power of a room's tests: change its source in one place, and see whether they notice.

    python -m tests.mutants --reach                         once: which test reaches which line
    python -m tests.mutants --reach tests/core tests/rules  these tests first, others later
    python -m tests.mutants rules --count 40 --seed 0       40 mutants of spherenorm/rules

`--reach` runs the suite under coverage, about three times as long as `make test`. A mutant runs
against the tests that reach its line, one of each test function before the second of any, quick
ones first, and then against other tests of the same files, until one fails or they would take
longer than two minutes. A mutant that keeps its tests from ending is noticed. The tests that
noticed one must pass on the code as it is. The table has each mutant as noticed, missed or
equivalent: one whose numbers nobody can see is a line of `tests/equivalent.txt`, with its reason.

All of it lies in `build/mutants`; `--only KEY` runs one mutant of the draw and shows the output.
After tests have been added, `--reach` of their files and the room again: it runs those missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.harness.mutations import Mutant, draw

ROOT = Path(__file__).parents[1]
LIBRARY, THEORY, EXPERIMENTS, PAPER = PACKAGES = (
    "spherenorm",
    "theory/spherenorm_theory",
    "experiments/spherenorm_experiments",
    "experiments/spherenorm_paper",
)
PARTS = ("rules", "recipes", "optim", "testing", "compile", "audit", "probes")
EQUIVALENT = ROOT / "tests" / "equivalent.txt"
WORK = ROOT / "build" / "mutants"
PLANNED, LIMIT, MOST = 60.0, 120, 250
"""Seconds that the chosen tests took under coverage; seconds of work after which they are ended, so
that other work on the machine does not count; tests."""
COLLECTION_ERROR = re.compile(r"^ERROR \S+\.py\b", re.MULTILINE)
"""A file of tests that cannot be imported; its tests are then named as not found, too."""
WAIT = 10
"""Times as long as that by the clock, since tests may wait for one another."""


def files_of(room: str) -> list[Path]:
    """The source files of a room."""
    if room in PARTS:
        return sorted((ROOT / LIBRARY / room).rglob("*.py"))
    if room == "core":
        return sorted((ROOT / LIBRARY).glob("*.py"))
    if room == "theory":
        return sorted((ROOT / THEORY).rglob("*.py"))
    return sorted((ROOT / (PAPER if room == "paper" else EXPERIMENTS)).rglob("*.py"))


ROOMS = ("core", *PARTS, "theory", "experiments", "paper")


# What reaches a line: this module is a plugin of pytest while `measure_reach` runs.


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let coverage note the test, also in the processes that it starts, and its seconds."""
    from coverage import Coverage

    def switch(name: str) -> None:
        os.environ["SPHERENORM_TEST"] = name
        if (now := Coverage.current()) is not None:
            now.switch_context(name)

    switch(item.nodeid)
    start = time.perf_counter()
    yield
    switch("")
    with (WORK / f"seconds.{os.getpid()}").open("a") as file:
        file.write(json.dumps([item.nodeid, time.perf_counter() - start]) + "\n")


def measure_reach(tests: list[str]) -> None:
    """Run tests under coverage, or all of them; `reach.json` has the tests of each line."""
    if not tests:
        shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True, exist_ok=True)
    settings = WORK / "coveragerc"
    settings.write_text(
        "[run]\nparallel = true\ncontext = ${SPHERENORM_TEST-}\n"
        f"data_file = {WORK / 'coverage'}\nsource =\n"
        + "".join(f"    {ROOT / package}\n" for package in PACKAGES)
        + "disable_warnings = no-data-collected,module-not-imported\n"
    )
    environment = {
        **os.environ,
        "COVERAGE_PROCESS_START": str(settings),
        "SPHERENORM_PATIENCE": "120",
        "PYTHONPATH": python_path(ROOT),
    }
    command = ["-m", "pytest", "-n", "2", "-p", "tests.mutants", "-p", "no:cacheprovider", *tests]
    subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=False)
    gather_reach()


def gather_reach() -> None:
    """`reach.json`: by file and line the tests that reach it, and the seconds of each test."""
    from coverage import CoverageData

    whole = CoverageData(str(WORK / "whole"))
    for part in sorted(WORK.glob("coverage.*")):
        data = CoverageData(str(part))
        data.read()
        whole.update(data)
    seconds = dict(
        json.loads(line) for path in WORK.glob("seconds.*") for line in path.open(encoding="utf-8")
    )
    names = {name: place for place, name in enumerate(seconds)}
    reach = {}
    for file in whole.measured_files():
        lines = whole.contexts_by_lineno(file)
        reach[Path(file).relative_to(ROOT).as_posix()] = {
            line: [names[context] for context in contexts if context in names]
            for line, contexts in lines.items()
        }
    (WORK / "reach.json").write_text(json.dumps({"seconds": seconds, "reach": reach}))


class Reach:
    """The tests that reach a line, in the order in which they are tried."""

    def __init__(self) -> None:
        path = WORK / "reach.json"
        if not path.exists():
            sys.exit("run `python -m tests.mutants --reach` first")
        read = json.loads(path.read_text())
        self.seconds: dict[str, float] = read["seconds"]
        self.names = list(self.seconds)
        self.reach: dict[str, dict[str, list[int]]] = read["reach"]
        self.by_file: dict[str, list[str]] = defaultdict(list)
        for name in self.names:
            self.by_file[name.partition("::")[0]].append(name)

    def tests(self, mutant: Mutant) -> list[str]:
        """Those of the line, or of the file's functions if it runs at import.

        First comes the room's own: of the latter, and for a default, which may be read unused.
        """
        lines = self.reach.get(mutant.path, {})
        found = lines.get(str(mutant.reached), [])
        near = found or sorted({test for tests in lines.values() for test in tests})
        direct = [self.names[place] for place in near]
        files = {name.partition("::")[0] for name in direct}
        beside = [name for file in files for name in self.by_file[file] if name not in set(direct)]
        outer, inner, *_ = mutant.path.split("/")
        room = outer if outer != LIBRARY else inner if inner in PARTS else "core"
        is_default = mutant.reached != mutant.line
        first = self.names if is_default else [] if found else direct
        own = [name for name in first if name.startswith(f"tests/{room}/")]
        firsts = {name.partition("[")[0]: name for name in reversed(self._in_turn(own))}
        own = self._in_turn(firsts.values() if is_default else own)
        chosen: list[str] = []
        planned = 0.0
        order = [*own, *self._in_turn(direct), *self._in_turn(beside)]
        for name in dict.fromkeys(order):
            planned += self.seconds[name] + 0.05
            if chosen and (planned > PLANNED or len(chosen) == MOST):
                break
            chosen.append(name)
        return chosen

    def _in_turn(self, names: Iterable[str]) -> list[str]:
        """One test of each function, then the second of each; quick ones first."""
        turns: dict[str, int] = defaultdict(int)
        order = []
        for name in sorted(names, key=lambda name: (self.seconds[name], name)):
            function = name.partition("[")[0]
            order.append((turns[function], self.seconds[name], name))
            turns[function] += 1
        return [name for *_, name in sorted(order)]


def python_path(root: Path) -> str:
    return os.pathsep.join(str(root / package).rpartition("/")[0] for package in PACKAGES)


def copy_tree(folder: Path) -> Path:
    """A copy of the checkout, to be changed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def run_tests(tests: list[str], folder: Path, limit: int = LIMIT) -> tuple[int | None, str]:
    """(Exit code, output) of tests on a copy; no code if they do not end.

    A child does that which has imported torch already, and nothing of ours.
    """
    with tempfile.TemporaryFile() as output:
        arguments = (tests, folder, output.fileno(), limit)
        child = multiprocessing.get_context("fork").Process(target=_test, args=arguments)
        child.start()
        child.join(WAIT * limit)
        code = None if child.exitcode == -signal.SIGXCPU else child.exitcode
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # with the processes of its tests
        child.join()
        output.seek(0)
        return code, output.read().decode(errors="replace")


def _test(tests: list[str], folder: Path, output: int, limit: int) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    os.environ |= {"SPHERENORM_PATIENCE": "20", "PYTHONPATH": python_path(folder)}
    ours = {str(ROOT), *python_path(ROOT).split(os.pathsep), ""}
    sys.path[:] = [*python_path(folder).split(os.pathsep), *(p for p in sys.path if p not in ours)]
    for name in list(sys.modules):
        if name.partition(".")[0] in ("spherenorm", "tests", "docs", "benchmarks"):
            del sys.modules[name]
    os._exit(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=line", *tests]))


def judge(mutant: Mutant, tests: list[str], folder: Path) -> dict[str, Any]:
    """Run the tests on a copy with the mutant."""
    start = time.perf_counter()
    path = folder / mutant.path
    source = path.read_text()
    path.write_text(mutant.of(source))
    gone: set[str] = set()
    try:
        code, output = run_tests(tests, folder) if tests else (0, "no test reaches it")
        while not COLLECTION_ERROR.search(output) and (
            gone := set(re.findall(rf"^ERROR: not found: {folder}/(.+)$", output, re.MULTILINE))
        ):
            # The mutant changes of which cases they are made; or the reach is of older tests.
            left = [name for name in tests if name.partition("[")[0] not in gone]
            if not left or left == tests:
                break
            tests = left
            code, output = run_tests(tests, folder)
    finally:
        path.write_text(source)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if code is None:
        verdict, test = "noticed", "the tests do not end"
    elif code == 0:
        verdict, test = "missed", None
    elif gone:
        verdict, test = "not judged", "none of its tests has that name now"
    else:
        verdict, test = "noticed", failed[1] if failed else f"pytest ends with {code}"
    taken = time.perf_counter() - start
    return {
        **vars(mutant),
        "key": mutant.key,
        "verdict": verdict,
        "test": test,
        "tests": len(tests),
        "seconds": round(taken, 1),
        "output": output[-1500:],
    }


def measure(room: str, mutants: list[Mutant], jobs: int, root: Path) -> list[dict[str, Any]]:
    """The verdict on each mutant; those that have been noticed are not run again."""
    reach = Reach()
    results = WORK / f"{room}.jsonl"
    old = [json.loads(line) for line in results.open()] if results.exists() else []
    done = {each["key"]: each for each in old if each["verdict"] == "noticed"}
    folders = [copy_tree(root / str(place)) for place in range(jobs)]

    def run(place: int) -> None:
        for mutant in mutants[place::jobs]:
            if mutant.key not in done:
                found = judge(mutant, reach.tests(mutant), folders[place])
                done[mutant.key] = found
                with results.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(f"{found['verdict']:9}{found['seconds']:6.0f} s  {mutant}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, range(jobs)))
    found = [done[mutant.key] for mutant in mutants]
    noticing = sorted({each["test"] for each in found} & reach.seconds.keys())
    code, output = run_tests(noticing, folders[0], 20 * LIMIT)
    assert code == 0, f"without a mutant the tests do not pass:\n{output}"
    return found


def equivalents() -> dict[str, str]:
    """The reason by the key of a mutant."""
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    return dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("room", nargs="?", choices=ROOMS)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", metavar="KEY", help="run this mutant alone; show the output")
    parser.add_argument(
        "--reach", nargs="*", metavar="TESTS", help="run the suite under coverage, or a part"
    )
    given = parser.parse_args()
    if given.reach is not None:
        measure_reach(given.reach)
    if given.room is None:
        return
    import numpy
    import sympy
    import torch

    torch.set_num_threads(1)
    assert numpy, sympy  # a child need not import them again
    mutants = draw(files_of(given.room), ROOT, given.count, given.seed)
    with tempfile.TemporaryDirectory() as folder:
        if given.only:
            [mutant] = [each for each in mutants if each.key == given.only]
            tests = Reach().tests(mutant)
            print(mutant, *tests, judge(mutant, tests, copy_tree(Path(folder))), sep="\n")
            return
        found = measure(given.room, mutants, given.jobs, Path(folder))
    reasons = equivalents()
    counts: dict[str, int] = defaultdict(int)
    for mutant, each in zip(mutants, found, strict=True):
        same = each["verdict"] == "missed" and mutant.key in reasons
        verdict = "equivalent" if same else each["verdict"]
        counts[verdict] += 1
        why = reasons[mutant.key] if same else each["test"] or ""
        print(f"{verdict:11}{mutant.key}  {mutant}  {why}")
    print(f"{given.room}: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items()))


if __name__ == "__main__":
    main()
