"""Names in backticks lead somewhere: modules, files, functions and attributes that pages and
docstrings speak of are there."""

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
"""The class of the object that a name of an example stands for."""


@functools.cache
def files():
    """Every file and folder, with a "/" around it."""
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if ".venv" not in path.parts)
    return [f"/{path}/" for path in found]


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


@functools.cache
def identifiers():
    """Every name in the code, and every word of its strings that are no docstrings."""
    found = {path.stem for path in SOURCES} | {path.parent.name for path in SOURCES}
    for path in SOURCES:
        if path == Path(__file__):
            continue
        statements = {
            id(node.value) for node in ast.walk(parsed(path)) if isinstance(node, ast.Expr)
        }
        for node in ast.walk(parsed(path)):
            for field in ("id", "attr", "arg", "name", "asname", "module"):
                if isinstance(value := getattr(node, field, None), str):
                    found.update(value.split("."))
            value = getattr(node, "value", None)
            if isinstance(value, str) and id(node) not in statements:
                found.update(NAME.findall(value))
    return frozenset(found)


def docstrings(path):
    """The docstrings of a file, those behind constants too."""
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
    """An attribute; of a class also a field, or what its code assigns to `self`."""
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
    found = [getattr(space, head) for space in spaces if hasattr(space, head)]
    if head in ("sn", "torch", *PACKAGES):
        found.append(sn if head == "sn" else importlib.import_module(head))
    return [*found, TYPES[head]] if head in TYPES else found


def is_dead(token, module=None):
    """True of a name that nothing in the code has any more."""
    if re.fullmatch(r"[\w./-]+\.(py|md|toml|txt|json)|[\w/]+/", token):
        return not any(name.endswith(f"/{token.strip('/')}/") for name in files())
    dotted = DOTTED.match(token)
    if dotted is None or not re.match(r"[ %]|$", token[dotted.end() :]):
        return False
    head, *names = dotted[1].split(".")
    if not names:
        return dotted[0] == token and head not in identifiers()
    found = owners(head, module)
    homes = [path for path in SOURCES if path.stem == head]
    if any(resolves(owner, names) for owner in found) or any(defines(p, names[0]) for p in homes):
        return False
    return bool(found or homes)


def defines(path, name):
    """True of a file with this word in its code."""
    return re.search(rf"\b{name}\b", path.read_text()) is not None


OTHERS = {
    "architecture.md": {"_name.py", "spherenorm.commands"},
    "divergences.md": {
        *("HyperBallAdamW", "RadialBrakeHook", "emerging_optimizers"),
        'create_optimizer_v2(..., opt="adamp")',
    },
    "experiments.md": {"plans/"},
    "index.md": {"bench"},
    "integrations.md": {"_partial_", "_target_", "create_optimizer_v2", "param_group_fn"},
    "training.md": {"waves.py"},
    "tutorial.md": {"my_optimizers.py"},
    "spherenorm/compile/cpp/printed_pass.py": {"passN(part)"},
    "spherenorm/optim/group.py": {"use_muon"},
    "spherenorm/optim/optimizer.py": {"use_muon"},
    "spherenorm/optim/timm.py": {
        'create_optimizer_v2(model, opt="sn-adamp")',
        "param_group_fn",
    },
    "experiments/spherenorm_experiments/cli/__init__.py": {"spherenorm.commands"},
    "experiments/spherenorm_paper/detection/centernet.py": {
        *("resnet_dcn.py", "losses.py", "decode.py"),
    },
    "experiments/spherenorm_paper/detection/ssd.py": {"ssd300_vgg16"},
    "experiments/spherenorm_paper/shared/imagenet.py": {"ImageFolder"},
    "experiments/spherenorm_experiments/loop.py": {"progress.json"},  # of a run
    "experiments/spherenorm_experiments/runs.py": {"hyper.lr"},
    "experiments/spherenorm_experiments/tables.py": {"tabular", "booktabs"},
}
"""Names of other libraries, extras and a reader's own files, by the file that speaks of them."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_on_pages_lead_somewhere(page):
    dead = [token for token in in_backticks(page.read_text()) if is_dead(token)]
    assert set(dead) <= OTHERS.get(page.name, set())


def test_names_in_docstrings_lead_somewhere():
    dead = []
    for path in MODULES:
        name = str(path.relative_to(ROOT))
        tokens = [token for text in docstrings(path) for token in in_backticks(text)]
        known = OTHERS.get(name, set())
        dead += [(name, x) for x in tokens if x not in known and is_dead(x, module_name(path))]
    assert not dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_that_pages_run_are_there(page):
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
