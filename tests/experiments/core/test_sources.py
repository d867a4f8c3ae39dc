"""Everything that decides a run's outcome is in its identity, and nothing else is."""

import importlib
import sys
from dataclasses import replace

import pytest
import torch
from miniatures import write_speech_commands
from running import run_of
from spherenorm_odd import Arrays
from spherenorm_tiny import tiny_spec
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from spherenorm_experiments.core import SCHEDULES, Spec, Splits
from spherenorm_experiments.core._task import fingerprint_of
from spherenorm_experiments.paper.shared.layout import FOLDER

FILES = {
    "mine_recipe": "from mine_rules import Mine\nK = 0.5\n\ndef mine(lr=0.1):\n"
    "    '''Documented.'''\n    return Mine(K * lr)\n",
    "mine_rules": "from spherenorm import rules as r\nfrom mine_package.scales import FACTOR\n\n"
    "class Mine(r.StepSize):\n    factor = FACTOR\n",
    "mine_package/__init__": "",
    "mine_package/scales": "FACTOR = 1.0\n",
    "mine_task": "from spherenorm_tiny import Tiny\nimport mine_data\n\nclass Mine(Tiny):\n"
    "    def data(self):\n        return mine_data.same(super().data())\n",
    "mine_data": "def same(x):\n    return x\n",
    "mine_probe": "def mine(step):\n    return {'x': 1}\n",
    "mine_bystander": "import mine_recipe\n",
}


@pytest.fixture
def identity(tmp_path, monkeypatch):
    """The run's id in a process that starts anew, after an edit of one of a user's files."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, content in FILES.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)

    def forget():
        for module in [module for module in sys.modules if module.startswith("mine_")]:
            del sys.modules[module]
        importlib.invalidate_caches()

    def identity(name=None, old="", new=""):
        if name is not None:
            path = tmp_path / f"{name}.py"
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
        forget()
        fields = {"epochs": 1, "batch_size": 16, "probes": ("mine_probe:mine",)}
        return run_of(Spec("mine_task:Mine", "mine_recipe:mine", {"lr": 0.1}, **fields)).id

    yield identity
    forget()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("mine_recipe", "K = 0.5", "K = 0.25"),
        ("mine_rules", "factor =", "other = 1\n    factor ="),
        ("mine_package/scales", "1.0", "2.0"),
        ("mine_task", "super().data()", "super().data()._replace()"),
        ("mine_data", "return x", "return x._replace()"),
        ("mine_probe", "1", "222"),
    ],
)
def test_an_edit_of_whatever_computes_makes_a_new_run(identity, name, old, new):
    before = identity()
    assert identity() == before
    assert identity(name, old, new) != before


def test_an_edit_that_decides_nothing_makes_none(identity):
    before = identity()
    assert identity("mine_recipe", "Documented.'''", "At length.'''  # commented") == before
    assert identity("mine_bystander", "import mine_recipe", "import mine_recipe, sys") == before


def test_the_identity_of_a_run_is_everything_that_decides_it():
    specs = [
        tiny_spec(),
        tiny_spec(seed=1),
        tiny_spec(epochs=4),
        tiny_spec("sgd"),
        tiny_spec(lr=0.2),
        replace(tiny_spec(), options={"scale": 2.0}),
        replace(tiny_spec(), batch_size=8),
        *(replace(tiny_spec(), schedule=name) for name in SCHEDULES if name != "cosine"),
        replace(tiny_spec(), probes=()),
        replace(tiny_spec(), probe_every=2),
        replace(tiny_spec(), device="meta"),
    ]
    assert len({run_of(spec).id for spec in specs}) == len(specs)


def test_an_item_on_the_other_side_of_a_split_makes_other_data():
    a, b, c, d = ((torch.tensor([float(k)]), k) for k in range(4))
    splits = [Splits([a, b], [c], [d]), Splits([a], [b, c], [d]), Splits([a], [b], [c, d])]
    splits += [Splits([(1, 23)], [a], [a]), Splits([(12, 3)], [a], [a])]
    assert len(set(map(fingerprint_of, splits))) == len(splits)


def test_another_folder_of_data_sets_has_other_data_and_other_runs(tmp_path, monkeypatch):
    """In one process: neither data nor fingerprint may be those of the folder before."""
    ids = []
    for name in ("a", "b", "a"):
        root = tmp_path / name
        if not root.exists():
            clip = write_speech_commands(root) / "backward" / "00000000_nohash_0.wav"
            clip.write_bytes(clip.with_name(f"0000000{int(name == 'b')}_nohash_0.wav").read_bytes())
        monkeypatch.setenv(FOLDER, str(root))
        run = run_of(Spec("keywords", "adamp", {"lr": 0.1}, {"data_set": "speech_commands"}))
        ids.append(run.id)
        assert run.splits.train.files[0].is_relative_to(root)
    assert ids[0] == ids[2] != ids[1]


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
