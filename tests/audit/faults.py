"""Plant faults in the audit, one at a time, and see whether its tests notice.

    python -m tests.audit.faults [part of a fault's name]

Each fault is a change of one line in a copy of the library. The exit code is 1 if the tests pass
with a fault in it. It takes some minutes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

__all__ = ["FAULTS", "Fault", "noticed"]

ROOT = Path(__file__).parents[2]
AUDIT, COPIES, GROUPS, NESTED, PLAN, PRECISE = (
    f"_{name}.py" for name in ("audit", "copies", "param_groups", "nested", "plan", "precise")
)
SENSITIVITY, STATISTICS, SUBJECT, UNITS, VERDICT, WITNESS = (
    f"_{name}.py"
    for name in ("sensitivity", "statistics", "subject", "units", "verdict", "witness")
)


FIRST = {
    **dict.fromkeys((COPIES, NESTED, SUBJECT), ("side_effects", "unusual_models")),
    STATISTICS: ("statistics",),
    **dict.fromkeys((GROUPS, PLAN), ("param_groups", "users_recipes")),
}
"""Tests that most likely notice the faults of a file."""


class Fault(NamedTuple):
    """One fault: in this file of `spherenorm/audit`, which has `old` once, it becomes `new`."""

    name: str
    file: str
    old: str
    new: str


FAULTS = [
    # the measure
    Fault(
        "no radial part",
        SENSITIVITY,
        "grads[:, :, None]).flatten()",
        "grads[:, :, None]).flatten()*0",
    ),
    Fault("a radial part with a sign", SENSITIVITY, "cosine = product.abs()", "cosine = product"),
    Fault(
        "no tangential part to compare with",
        SENSITIVITY,
        "product.abs() / torch.where(shows, sensitivity, 1)",
        "product.abs()",
    ),
    Fault(
        "a threshold that is far too high",
        AUDIT,
        "exact = 64 * torch.finfo(dtype).eps ** 0.5",
        "exact = 0.3",
    ),
    Fault(
        "a threshold below rounding",
        AUDIT,
        "exact = 64 * torch.finfo(dtype).eps ** 0.5",
        "exact = 1e-17",
    ),
    Fault(
        "float32", AUDIT, "dtype: torch.dtype = torch.float64", "dtype: torch.dtype = torch.float32"
    ),
    Fault(
        "rounding that counts as evidence",
        SENSITIVITY,
        "shows = sensitivity > _RELATIVE_ROUNDING * sensitivity.max()",
        "shows = sensitivity > 0",
    ),
    Fault("one output of a large scale", SENSITIVITY, "noise / unit[finite]", "noise"),
    Fault(
        "one unit for all outputs",
        SENSITIVITY,
        "move.clamp(min=_LEAST_UNIT * largest or 1.0)",
        "move.clamp(min=largest or 1.0)",
    ),
    Fault(
        "memory that counts once",
        SENSITIVITY,
        "    if len(sharing) == 1:",
        "    if True:",
    ),
    Fault(
        "a backward pass without the mode",
        SENSITIVITY,
        "            _run_backward(tested)",
        "            tested.backward()",
    ),
    # the views
    Fault("a wrong dimension", SENSITIVITY, "dim = view.dim % len(self.shape)", "dim = 0"),
    Fault(
        "groups of indices that lie apart",
        SENSITIVITY,
        "sums.reshape(3, view.groups, -1).sum(2)",
        "sums.reshape(3, -1, view.groups).sum(1)",
    ),
    Fault(
        "one invariant unit is enough",
        UNITS,
        "return bool(self.good.any()) and torch.equal(self.good, self.seen)",
        "return bool(self.good.any())",
    ),
    Fault(
        "the coarsest view first",
        UNITS,
        "        return _all_views(shape)",
        "        return reversed(list(_all_views(shape)))",
    ),
    # the points
    Fault(
        "no jitter of parameters",
        SUBJECT,
        "_move(self.parameters.values(), point.jitter, point.seed)",
        "pass",
    ),
    Fault(
        "zeros that stay zeros",
        SUBJECT,
        "value.add_(noise, alpha=0.1 * usual * size)",
        "pass",
    ),
    Fault(
        "no jitter of the batch",
        SUBJECT,
        "if not (size and value.is_floating_point()",
        "if not (False and value.is_floating_point()",
    ),
    Fault(
        "one jittered point",
        AUDIT,
        "_FEWEST_POINTS, _MOST_POINTS = 2, 8",
        "_FEWEST_POINTS, _MOST_POINTS = 1, 1",
    ),
    Fault(
        "jittered points that do not count",
        UNITS,
        "good = seen_elsewhere & ~bad_here & ~bad_elsewhere",
        "good = seen_here & ~bad_here",
    ),
    Fault(
        "other random numbers in each pass", SUBJECT, "            torch.manual_seed(seed)\n", ""
    ),
    # the verdicts
    Fault(
        "no evidence ignored",
        VERDICT,
        "if not any(sums.sensitivity > 0 for sums in everywhere)",
        "if False",
    ),
    Fault("an eps that stays", PRECISE, "EPS_LIMIT = 1e-10", "EPS_LIMIT = 1.0"),
    Fault("never up to eps", VERDICT, "float(seen.max()) <= tolerance", "True"),
    Fault("a coarser view that hides units", VERDICT, "if units.only_elsewhere:", "if False:"),
    Fault("an eps that outweighs all", VERDICT, "if share > _MOST_EPS:", "if False:"),
    Fault(
        "only through eps ignored",
        UNITS,
        "return 0 < self.limit.sensitivity < _ONLY_THROUGH_EPS * self.here[0].sensitivity",
        "return False",
    ),
    Fault(
        "no second witness", AUDIT, "wrong = set(refuted(subject, point, found))", "wrong = set()"
    ),
    Fault(
        "a witness that a small branch escapes",
        WITNESS,
        "_ALL_AT_ONCE = 1e-6",
        "_ALL_AT_ONCE = 1e-2",
    ),
    Fault(
        "a witness that a large scale blinds",
        WITNESS,
        "_LEFT_BY_EPS) * unit\n",
        "_LEFT_BY_EPS) * unit.max()\n",
    ),
    Fault("a witness elsewhere", AUDIT, "found[0]\n", "Point(seed + 1, 1.0, 0.0, EPS_LIMIT)\n"),
    Fault("one random direction", AUDIT, "for draw in (seed, seed + 1)]", "for draw in (seed,)]"),
    Fault("passes that differ, unsaid", WITNESS, "    if not all(same):", "    if False:"),
    Fault(
        "units that were seen here alone",
        UNITS,
        "            if unseen.any():",
        "            if False:",
    ),
    Fault(
        "a coarser view that hides unseen units",
        VERDICT,
        "        if units.unseen:",
        "        if False:",
    ),
    Fault(
        "buffers that stay as they start",
        SUBJECT,
        "buffer = left if point.jitter else start",
        "buffer = start",
    ),
    Fault("a witness that scales one way", WITNESS, "for way in (1, -1)", "for way in (1, 1)"),
    Fault("a witness that scales by 1", WITNESS, "        value.mul_(factors)", "        pass"),
    Fault("frozen weights", AUDIT, "if not weight.requires_grad:", "if False:"),
    Fault(
        "shared weights counted twice",
        AUDIT,
        "for parameter in model.parameters())",
        "for _, parameter in model.named_parameters(remove_duplicate=False))",
    ),
    Fault(
        "no doubt about eval mode",
        PRECISE,
        "        if name in _BATCH_STATISTICS:",
        "        if False:",
    ),
    # the caller's things
    Fault(
        "inputs that are not copied",
        SUBJECT,
        "_jittered(in_dtype(x, self.dtype), point",
        "_jittered(x.to(self.dtype) if x.is_floating_point() else x, point",
    ),
    Fault(
        "the model itself", COPIES, "return copy.deepcopy(model, memo), memo", "return model, memo"
    ),
    Fault("copies that are copied", COPIES, "memo.setdefault(id(made), made)", "pass"),
    Fault("compiled code", SUBJECT, 'set_stance("force_eager")', 'set_stance("default")'),
    Fault(
        "a second copy, unsaid",
        SUBJECT,
        "for parameter in self._callers.foreign:",
        "for parameter in ():",
    ),
    Fault("memory that is not shared", COPIES, "if not others or any(", "if True or any("),
    Fault("functions that are shared", COPIES, "container[key] = _apart(value, memo)", "pass"),
    Fault("functions of tables that are shared", COPIES, "isinstance(value, dict | list)", "False"),
    Fault("a copy that shares weights", COPIES, "if memory_of(x) in theirs:", "if False:"),
    Fault(
        "a loss with views of weights",
        COPIES,
        "_tensors((model, loss), dtype)",
        "_tensors(model, dtype)",
    ),
    Fault(
        "views in closures",
        NESTED,
        "items = () if is_output else _variables_of(value)",
        "items = ()",
    ),
    Fault("slots without outputs", NESTED, "{**in_slots, **getattr", "{**getattr"),
    Fault(
        "outputs in sets and deques",
        NESTED,
        "(tuple, list, set, frozenset, collections.deque)",
        "(tuple, list)",
    ),
    Fault("outputs of generators", NESTED, "(is_output and isinstance(value, Iterator))", "False"),
    Fault(
        "a cache by part of its name", NESTED, 'key.lstrip("_") in _CACHES', "key.endswith(_CACHES)"
    ),
    Fault(
        "buffers that are not put back",
        SUBJECT,
        "            module._buffers[name] = fresh",
        "            pass",
    ),
    Fault("Python's random state", SUBJECT, "random.setstate(state)", "pass"),
    Fault(
        "NumPy's random state",
        SUBJECT,
        "            np.random.set_state(numpy_state)",
        "            pass",
    ),
    Fault(
        "torch's random state",
        SUBJECT,
        "with torch.random.fork_rng(devices=devices):",
        "with torch.enable_grad():",
    ),
    Fault(
        "the default dtype",
        SUBJECT,
        "            torch.set_default_dtype(default)",
        "            pass",
    ),
    # the groups
    Fault(
        "weights left off the sphere",
        GROUPS,
        "weight.copy_(Sphere(view).normalize(weight))",
        "pass",
    ),
    Fault("up to eps on the sphere", PLAN, "treatment.up_to_eps:", "False:"),
    Fault(
        "statistics of parts in eval mode",
        STATISTICS,
        "made = [n for n in kept if",
        "made = [n for n in kept if model.training and",
    ),
    Fault("statistics that stay", STATISTICS, "    variance.mul_(factor)", "    pass"),
    Fault("means that stay", STATISTICS, "    mean.copy_(", "    mean.clone().copy_("),
    Fault(
        "statistics that do not fit, unsaid",
        STATISTICS,
        "    if moved > _NOTICED:",
        "    if False:",
    ),
    Fault(
        "zero units on the sphere",
        PLAN,
        "self.sphere is not None and bool((norms == 0).any())",
        "False",
    ),
    Fault(
        "tests of what is not invariant",
        PLAN,
        "bound = bound.replace(views=())",
        "bound = bound.replace()",
    ),
    Fault(
        "the recipe's view whatever the audit says",
        PLAN,
        "bound = bound.replace(view=str(view))",
        "pass",
    ),
    Fault("tiny units projected", PLAN, "norm < self.smallest_norm and", "False and"),
    Fault(
        "tiny units whatever the user says",
        PLAN,
        "norm < self.smallest_norm and not treatment.chosen",
        "norm < self.smallest_norm",
    ),
    Fault(
        "pruned units on the sphere", PLAN, "least < _TINY * self.smallest_norm and", "False and"
    ),
    Fault(
        "a refused weight",
        PLAN,
        "if refusal := _refusal(bound, weight):",
        'if refusal := "":',
    ),
]


def noticed(fault):
    """The first test that fails with this fault; None if all pass."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("spherenorm", "tests"):
            shutil.copytree(ROOT / part, Path(folder, part), ignore=_no_caches)
        shutil.copy(ROOT / "pyproject.toml", folder)
        path = Path(folder, "spherenorm", "audit", fault.file)
        content = path.read_text()
        if content.count(fault.old) != 1:
            raise ValueError(f"{fault.name}: {fault.file} does not have {fault.old!r} once")
        path.write_text(content.replace(fault.old, fault.new))
        names = *FIRST.get(fault.file, ()), "audit", "zoo"
        tests = [*(f"tests/audit/test_{name}.py" for name in names), "tests/audit"]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0"]
        done = subprocess.run(
            [*command, *tests, "-p", "no:cacheprovider", "--tb=no"],
            check=False,
            cwd=folder,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not failed:
        raise RuntimeError(
            f"{fault.name}: pytest ended with {done.returncode}:\n{done.stdout[-2000:]}"
        )
    return failed[0].split(" - ")[0].split(" ", 1)[1]


def _no_caches(folder, names):
    return [name for name in names if name == "__pycache__"]


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.audit.faults", description=__doc__)
    parser.add_argument("part", nargs="?", default="")
    given = parser.parse_args()
    faults = [fault for fault in FAULTS if given.part in fault.name]
    missed = 0
    for fault in faults:
        found = noticed(fault)
        missed += found is None
        print(f"{fault.name:45} {found or 'NOT NOTICED'}", flush=True)
    print(f"{len(faults) - missed} of {len(faults)} faults are noticed")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
