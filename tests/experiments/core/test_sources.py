"""Everything that decides a run's outcome is in its identity, and nothing else is."""

import importlib
import re
import sys
from dataclasses import replace

import pytest
import torch
from miniatures import write_in_shop, write_speech_commands
from running import run_of
from spherenorm_odd import Arrays
from spherenorm_tiny import Tiny, tiny_spec
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from spherenorm_experiments.core import SCHEDULES, Spec, Splits
from spherenorm_experiments.core import _identity as identity_module
from spherenorm_experiments.core import _sources as sources
from spherenorm_experiments.core._equal_sources import EQUAL_SOURCES
from spherenorm_experiments.core._task import fingerprint_of
from spherenorm_experiments.engine import PROBES
from spherenorm_experiments.paper.shared.layout import FOLDER

FILES = {
    "mine_recipe": """
from spherenorm import chain, rules as r
from mine_rules import Mine

K = 0.5

def helper(lr):
    return K * lr

def mine(lr=0.1):
    '''Documented.'''
    return chain(Mine(), r.StepSize(helper(lr)))
""",
    "mine_rules": """
from dataclasses import dataclass
from mine_base import Base

@dataclass(frozen=True)
class Mine(Base):
    pass
""",
    "mine_base": """
import spherenorm as sn

class Base(sn.Rule):
    def update(self, update, state):
        from mine_package.scales import scaled  # only when it is called
        return sn.Update(update.weight, update.grad, scaled(update.direction)), {}
""",
    "mine_package/__init__": "UNUSED = 1\n",
    "mine_package/scales": """
from . import numbers

def scaled(x):
    return numbers.FACTOR * x
""",
    "mine_package/numbers": "FACTOR = 1.0\n",
    "mine_task": """
from dataclasses import dataclass
from spherenorm_tiny import Tiny
import mine_data

@dataclass(frozen=True)
class Mine(Tiny):
    def data(self):
        return mine_data.shifted(super().data())
""",
    "mine_data": "import mine_parts.empty\n\ndef shifted(x):\n    return mine_parts.same(x)\n",
    "mine_parts/__init__": "def same(x):\n    return x\n",
    "mine_parts/empty": "",
    "mine_bystander": "import mine_recipe\n",
}


@pytest.fixture
def identity(tmp_path, monkeypatch):
    """The run's id in a process that starts anew, after an edit of one of the files."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, content in FILES.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)

    def identity(name=None, old="", new=""):
        if name is not None:
            path = tmp_path / f"{name}.py"
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
        for module in [module for module in sys.modules if module.startswith("mine_")]:
            del sys.modules[module]
        importlib.invalidate_caches()
        spec = Spec("mine_task:Mine", "mine_recipe:mine", {"lr": 0.1}, epochs=1, batch_size=16)
        return run_of(spec).id

    yield identity
    for module in [module for module in sys.modules if module.startswith("mine_")]:
        del sys.modules[module]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        pytest.param("mine_recipe", "K = 0.5", "K = 0.25", id="constant"),
        pytest.param("mine_recipe", "K * lr", "K * lr + 0", id="helper"),
        pytest.param("mine_rules", "    pass", "    extra = 1", id="rule"),
        pytest.param(
            "mine_base", "update.direction)), {}", "-update.direction)), {}", id="base class"
        ),
        pytest.param(
            "mine_package/scales", "* x", "* x * 2", id="helper of a helper, imported in a function"
        ),
        pytest.param("mine_package/numbers", "1.0", "2.0", id="constant of a helper's package"),
        pytest.param("mine_task", "super().data()", "super().data()._replace()", id="task"),
        pytest.param("mine_data", "same(x)", "same(x._replace())", id="task's helper"),
        pytest.param(
            "mine_parts/__init__", "return x", "return x._replace()", id="package of a module"
        ),
    ],
)
def test_an_edit_of_whatever_computes_makes_a_new_run(identity, name, old, new):
    before = identity()
    assert identity() == before
    assert identity(name, old, new) != before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("mine_recipe", "'''Documented.'''", "'''Documented at length.'''  # and commented"),
        ("mine_data", "def", "# what it says\n\ndef"),
        ("mine_bystander", "import mine_recipe", "import mine_recipe, sys"),
    ],
)
def test_an_edit_that_decides_nothing_makes_none(identity, name, old, new):
    before = identity()
    assert identity(name, old, new) == before


def test_of_the_library_what_rules_are_made_of_counts():
    def modules(*names):
        return set(sources._closure(set(names)))

    used = modules("spherenorm.rules._projection", "spherenorm._chain")
    assert {
        "spherenorm.rules._projection",
        "spherenorm._rule",
        "spherenorm._views",
        "spherenorm._manifold",
        "spherenorm._numerics",
    } <= used
    assert not used & {"spherenorm.rules._clip", "spherenorm.optim", "spherenorm"}
    own = modules("spherenorm_tiny")
    assert "spherenorm.rules._momentum" in own
    others = ("torch", "spherenorm_experiments.", "spherenorm.compile", "dataclasses")
    assert {name for name in own if name.startswith(others)} == {
        "spherenorm_experiments.core._metrics"
    }
    assert modules("spherenorm_experiments.paper.shared.digits") == {
        "spherenorm_experiments.paper.shared.digits",
        "spherenorm_experiments.paper.shared.layers",
        "spherenorm_experiments.paper.shared.resnet",
        "spherenorm_experiments.core._losses",
        "spherenorm_experiments.core._metrics",
    }


@pytest.mark.parametrize(
    ("task", "counted", "others"),
    [
        (
            "audio.tasks",
            ("paper.audio.harmonic_cnn", "paper.audio._audio", "core._losses", "core._metrics"),
            ("core", "core._spec"),
        ),
        (
            "retrieval.retrieval",
            ("paper.shared.resnet", "paper.shared.augmentation"),
            ("paper.audio.harmonic_cnn",),
        ),
        ("language.language", (), ("core._losses",)),
    ],
)
def test_of_a_task_networks_data_losses_and_metrics_count(task, counted, others):
    """An edit of a network, an augmentation or a crop must not find the runs of the one before."""
    found = sources._closure({f"spherenorm_experiments.paper.{task}"}).keys()
    assert {f"spherenorm_experiments.{name}" for name in counted} <= found
    assert not {f"spherenorm_experiments.{name}" for name in others} & found


def test_probes_and_schedules_are_in_the_identity(tmp_path, monkeypatch):
    """By their sources too: an edited probe measures something else under the same name."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_probe.py").write_text("from mine_probed import value as mine\n")

    def identity(number, probe):
        (tmp_path / "mine_probed.py").write_text(f"def value(step):\n    return {{'x': {number}}}")
        for name in ("mine_probe", "mine_probed"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return run_of(replace(tiny_spec(), probes=(probe,))).id

    mine = "mine_probe:mine"
    assert identity(1, mine) == identity(1, mine)
    assert len({identity(1, mine), identity(222, mine), identity(1, "norms")}) == 3
    schedules = {run_of(replace(tiny_spec(), schedule=name)).id for name in SCHEDULES}
    assert len(schedules) == len(SCHEDULES)
    counted = sources._closure(
        {"spherenorm_experiments.engine._probes", "spherenorm_experiments.core._schedules"}
    )
    assert {"spherenorm.metrics", "spherenorm_experiments.engine._probes"} <= counted.keys()
    for part, thing in (("schedule", SCHEDULES["cosine"]), ("probe", PROBES["norms"])):
        assert run_of(tiny_spec()).config[f"{part}_source"] == sources.source_digest(thing)
        assert sources._counts(thing.__module__)


def test_a_recipe_in_no_file_is_refused():
    scope = {"__name__": "nowhere_at_all"}
    exec("def mine(lr=0.1): pass", scope)
    with pytest.raises(ValueError, match="the source of nowhere_at_all cannot be read"):
        sources.source_digest(scope["mine"])


def test_the_rest_of_a_recipe_on_the_sphere_counts():
    on_sphere, plain = run_of(tiny_spec("sgdg", lr=0.1)), run_of(tiny_spec("sgd", lr=0.1))
    assert on_sphere.rest.name == "sgd"
    assert plain.rest is None
    rest = {"recipe": "spherenorm_tiny:careful", "lr": 0.1}
    own = run_of(replace(on_sphere.spec, rest=rest))
    assert own.config["recipe_source"] != on_sphere.config["recipe_source"]


def test_the_identity_of_a_run_is_everything_that_decides_it():
    specs = [
        tiny_spec(),
        tiny_spec(seed=1),
        tiny_spec(epochs=4),
        tiny_spec("sgd"),
        tiny_spec(lr=0.2),
        replace(tiny_spec(), options={"scale": 2.0}),
        replace(tiny_spec(), batch_size=8),
        replace(tiny_spec(), schedule="linear"),
        replace(tiny_spec(), probes=()),
        replace(tiny_spec(), probe_every=2),
        replace(tiny_spec(), device="meta"),
    ]
    assert len({run_of(spec).id for spec in specs}) == len(specs)


def test_a_file_with_the_name_of_one_of_pythons_modules_counts(identity, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    (tmp_path / "this.py").write_text("K = 1.0\n")
    before = identity("mine_recipe", "K = 0.5", "from this import K")
    assert identity("this", "1.0", "2.0") != before
    monkeypatch.delitem(sys.modules, "this", raising=False)


def test_an_item_on_the_other_side_of_a_split_makes_other_data():
    a, b, c, d = ((torch.tensor([float(k)]), k) for k in range(4))
    splits = [Splits([a, b], [c], [d]), Splits([a], [b, c], [d]), Splits([a], [b], [c, d])]
    splits += [Splits([(1, 23)], [a], [a]), Splits([(12, 3)], [a], [a])]
    assert len(set(map(fingerprint_of, splits))) == len(splits)


def test_the_data_of_a_task_are_in_the_identity(monkeypatch):
    before = run_of(tiny_spec())
    original = Tiny.data

    def changed(self):
        train, validation, (x, y) = original(self)
        return Splits(train, validation, (x, y + 1))

    monkeypatch.setattr(Tiny, "data", changed)
    identity_module._data_fingerprint.cache_clear()
    assert run_of(tiny_spec()).id != before.id
    identity_module._data_fingerprint.cache_clear()


def test_another_folder_of_data_sets_has_other_data_and_other_runs(tmp_path, monkeypatch):
    """In one process: neither data nor fingerprint may be those of the folder before."""
    ids = {}
    for name in ("a", "b", "a"):
        root = tmp_path / name
        if not root.exists():
            write_in_shop(root)  # random pictures
            clip = write_speech_commands(root) / "backward" / "00000000_nohash_0.wav"
            clip.write_bytes(clip.with_name(f"0000000{int(name == 'b')}_nohash_0.wav").read_bytes())
        monkeypatch.setenv(FOLDER, str(root))
        for task, data_set in (("retrieval", "in-shop"), ("keywords", "speech_commands")):
            run = run_of(Spec(task, "adamp", {"lr": 0.1}, {"data_set": data_set}))
            ids.setdefault(task, []).append(run.id)
            train = run.splits.train
            path = train.folder if task == "retrieval" else train.files[0]
            assert path.is_relative_to(root)
    for first, second, again in ids.values():
        assert first == again != second


def test_arrays_of_other_forms_are_other_data():
    """The bytes of all of them are equal."""
    found = {
        Arrays(dtype=dtype, width=width).fingerprint()
        for dtype in ("float32", "int32")
        for width in (6, 6, 12)
    }
    wide = Arrays(width=12).data().train[0][0]
    assert wide.tobytes() == Arrays(dtype="int32", width=12).data().train[0][0].tobytes()
    assert len(found) == 4


@pytest.mark.parametrize("kind", ["list", "tensors", "subset", "concatenated"])
def test_every_item_of_a_data_set_in_memory_counts(kind):
    """A label that was corrected makes new runs, wherever it stands."""
    made = {
        "list": lambda x, y: list(zip(x, y.tolist(), strict=True)),
        "tensors": TensorDataset,
        "subset": lambda x, y: Subset(TensorDataset(x, y), range(100)),
        "concatenated": lambda x, y: ConcatDataset([TensorDataset(x, y), TensorDataset(x, y)]),
    }[kind]
    found = set()
    for changed in (None, None, 1, 50, 98):
        x, y = torch.arange(200.0).view(100, 2), torch.zeros(100, dtype=torch.int64)
        if changed is not None:
            y[changed] = 1
        found.add(fingerprint_of(Splits(made(x, y), (x,), (x,))))
    assert len(found) == 4
    whole, part = (Subset(TensorDataset(x), rows) for rows in (range(100), [*range(99), 0]))
    assert fingerprint_of(Splits(whole, (x,), (x,))) != fingerprint_of(Splits(part, (x,), (x,)))


def test_sources_that_were_shown_to_be_equal_have_the_digest_of_the_earlier_ones(monkeypatch):
    own = sources.source_digest(Tiny)
    monkeypatch.setitem(EQUAL_SOURCES, own, "earlier")
    assert sources.source_digest(Tiny) == "earlier"
    assert sources.source_digest(Arrays) != "earlier"


def test_equal_sources_lead_to_the_first_ones():
    """A run's identity is found in one look: a chain would need several."""
    assert not EQUAL_SOURCES.keys() & set(EQUAL_SOURCES.values())
    assert all(
        re.fullmatch("[0-9a-f]{64}", each) for pair in EQUAL_SOURCES.items() for each in pair
    )
