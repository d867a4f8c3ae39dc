"""Names in backticks exist: modules, files, functions and attributes on pages and in docstrings."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest
import torch

import spherenorm as sn
from spherenorm.audit import ParamGroups

ROOT = Path(__file__).parents[2]
FOLDERS = ("spherenorm", "theory", "experiments", "docs", "tests", "examples", "benchmarks")
PACKAGES = {
    "spherenorm": ROOT,
    "spherenorm_theory": ROOT / "theory",
    "spherenorm_experiments": ROOT / "experiments",
}
SOURCES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "results" not in path.parts
]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "tests/README.md")),
    *(ROOT / name / "README.md" for name in ("theory", "experiments")),
    *sorted((ROOT / "docs").glob("*.md")),
]
MODULES = [
    path
    for package, folder in PACKAGES.items()
    for path in sorted((folder / package).rglob("*.py"))
]
NAME = re.compile(r"[A-Za-z_]\w*")
DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\))?", re.DOTALL)
TYPES = {
    **{name.lower(): getattr(sn, name) for name in ("Update", "Rule", "View", "Bound")},
    "optimizer": sn.optim.RecipeOptimizer,
    "probe": sn.probes.Probe,
    "groups": ParamGroups,
}
"""The class of the object that is usually assigned to a variable of this name."""


@functools.cache
def files():
    """Return the paths of all files and folders, such as "/spherenorm/rule.py/"."""
    paths = (path.relative_to(ROOT) for path in ROOT.rglob("*") if ".venv" not in path.parts)
    return [f"/{path}/" for path in paths]


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


@functools.cache
def identifiers():
    """Return every name in the code, and every word of its strings except docstrings."""
    names = {path.stem for path in SOURCES} | {path.parent.name for path in SOURCES}
    for path in SOURCES:
        if path == Path(__file__):
            continue
        expression_statements = {
            id(node.value) for node in ast.walk(parsed(path)) if isinstance(node, ast.Expr)
        }
        for node in ast.walk(parsed(path)):
            for field in ("id", "attr", "arg", "name", "asname", "module"):
                if isinstance(value := getattr(node, field, None), str):
                    names.update(value.split("."))
            value = getattr(node, "value", None)
            if isinstance(value, str) and id(node) not in expression_statements:
                names.update(NAME.findall(value))
    return frozenset(names)


def docstrings(path):
    """Yield the docstrings of a file, including those below constants."""
    for node in ast.walk(parsed(path)):
        text = getattr(getattr(node, "value", None), "value", None)
        if isinstance(node, ast.Expr) and isinstance(text, str):
            yield text


def in_backticks(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(token.split()) for token in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]


def module_name(path):
    for package, folder in PACKAGES.items():
        if path.is_relative_to(folder / package):
            parts = path.relative_to(folder).with_suffix("").parts
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return None


def attribute(owner, name):
    """Return an attribute; for a field, or an attribute that only instances have, a dummy."""
    if hasattr(owner, name):
        return getattr(owner, name)
    if isinstance(owner, type):
        for base in owner.__mro__:
            if name in getattr(base, "__annotations__", {}):
                return object()
        if name in identifiers():
            file = getattr(importlib.import_module(owner.__module__), "__file__", None)
            if file and f"self.{name}" in Path(file).read_text():
                return object()
    if hasattr(owner, "__path__"):
        return importlib.import_module(f"{owner.__name__}.{name}")
    raise AttributeError(name)


def resolves(owner, names):
    try:
        for name in names:
            owner = attribute(owner, name)
    except (AttributeError, ModuleNotFoundError):
        return False
    return True


def owners(head, module):
    """Return the objects that the first name of a dotted reference may stand for."""
    spaces = [sn, sn.rules, sn.zoo, torch]
    if module is not None:
        parts = module.split(".")
        spaces = [importlib.import_module(".".join(parts[:i])) for i in range(len(parts), 0, -1)]
        spaces += [sn, sn.rules, sn.zoo, torch]
    candidates = [getattr(space, head) for space in spaces if hasattr(space, head)]
    if head in ("sn", "torch", *PACKAGES):
        candidates.append(sn if head == "sn" else importlib.import_module(head))
    return [*candidates, TYPES[head]] if head in TYPES else candidates


def is_dead(token, module=None):
    """Return True for a name that the code does not have."""
    if re.fullmatch(r"[\w./-]+\.(py|md|toml|txt|json)|[\w/]+/", token):
        return not any(name.endswith(f"/{token.strip('/')}/") for name in files())
    dotted = DOTTED.match(token)
    if dotted is None or not re.match(r"[ %]|$", token[dotted.end() :]):
        return False
    head, *names = dotted[1].split(".")
    if not names:
        return dotted[0] == token and head not in identifiers()
    candidates = owners(head, module)
    modules = [path for path in SOURCES if path.stem == head]
    if any(resolves(owner, names) for owner in candidates):
        return False
    if any(has_word(path, names[0]) for path in modules):
        return False
    return bool(candidates or modules)


def has_word(path, name):
    return re.search(rf"\b{name}\b", path.read_text()) is not None


FOREIGN_NAMES = {
    "README.md": {"my_sgdp().step(weight, grad, state)", "rows.parquet"},
    "architecture.md": {"spherenorm.commands"},
    "divergences.md": {
        *("HyperBallAdamW", "RadialBrakeHook", "emerging_optimizers"),
        'create_optimizer_v2(..., opt="adamp")',
    },
    "experiments.md": {"plans/"},
    "index.md": {"bench"},
    "integrations.md": {
        *("_partial_", "_target_", "create_optimizer_v2", "param_group_fn", "model.reshard()"),
    },
    "schedules.md": {"annealed_sgd"},
    "training.md": {"waves.py"},
    "transfer.md": {"Conv1D", "check.svg()"},
    "spherenorm/audit/transfer.py": {"MuReadout"},
    "tutorial.md": {"my_optimizers.py"},
    "spherenorm/compile/code.py": {"passN(part)"},
    "spherenorm/compile/cuda/code.py": {"passN(part)"},
    "spherenorm/optim/param_groups.py": {"use_muon"},
    "spherenorm/optim/optimizer.py": {"use_muon"},
    "spherenorm/contrib/__init__.py": {
        'create_optimizer_v2(model, opt="sn-adamp")',
        "param_group_fn",
    },
    "experiments/spherenorm_experiments/cli/__init__.py": {"spherenorm.commands"},
    "experiments/spherenorm_paper/detection/centernet.py": {
        *("resnet_dcn.py", "losses.py", "decode.py"),
    },
    "experiments/spherenorm_paper/detection/ssd.py": {"ssd300_vgg16"},
    "experiments/spherenorm_paper/shared/imagenet.py": {"ImageFolder"},
    "experiments/spherenorm_experiments/train.py": {"progress.json"},  # of a run
    "experiments/spherenorm_experiments/lookup.py": {"path/to/study.py"},
    "experiments/spherenorm_experiments/runs.py": {"hyper.lr"},
    "experiments/spherenorm_experiments/tables.py": {"tabular", "booktabs"},
}
"""Names of other libraries, of entry points and of readers' files, by the page or module."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_on_pages_exist(page):
    dead = [token for token in in_backticks(page.read_text()) if is_dead(token)]
    assert set(dead) <= FOREIGN_NAMES.get(page.name, set())


def test_names_in_docstrings_exist():
    dead = []
    for path in MODULES:
        name = str(path.relative_to(ROOT))
        tokens = [token for text in docstrings(path) for token in in_backticks(text)]
        foreign = FOREIGN_NAMES.get(name, set())
        dead += [(name, x) for x in tokens if x not in foreign and is_dead(x, module_name(path))]
    assert not dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_that_pages_run_exist(page):
    for name in re.findall(r"python -m ([\w.]+)", page.read_text()):
        assert importlib.util.find_spec(name), name


@pytest.mark.parametrize(
    ("token", "dead"),
    [
        ("sn.audit", False),
        ("sn.adit", True),
        ("rules.ScaleInvarianceTest", False),
        ("rules.ScaleInvarianceTst(0.1)", True),
        ("update.direction", False),
        ("update.stepp % 10 == 1", True),
        ("spherenorm/rule.py", False),
        ("spherenorm/coreless.py", True),
        ("no_such_function_anywhere", True),
    ],
)
def test_a_dead_name_is_found(token, dead):
    assert is_dead(token) is dead
