"""A run is known by its spec and its data; the code that was loaded is a column beside it."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from functools import partial

import pytest
import torch
from miniatures import write_speech_commands
from running import run_of
from spherenorm_odd import Arrays
from spherenorm_tiny import tiny_spec
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from spherenorm_experiments.lookup import FOLDER
from spherenorm_experiments.spec import SCHEDULES, Spec
from spherenorm_experiments.store import changed_modules, file_digest
from spherenorm_experiments.task import Splits, fingerprint_of

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


LOADED = """
    import json
    from spherenorm_experiments.store import file_digest, user_files
    from spherenorm_experiments.execute import resolve
    from spherenorm_experiments.spec import Spec
    from spherenorm_experiments.store import Store
    fields = {"epochs": 1, "batch_size": 16, "probes": ("mine_probe:mine",)}
    resolve(Spec("mine_task:Mine", "mine_recipe:mine", {"lr": 0.1}, **fields), Store("x"))
    print(json.dumps({name: file_digest(path) for name, path in user_files().items()}))
"""
"""A process that has looked up a run, and says which code it has loaded."""


def changed_after(code, folder, name, old, new):
    """The modules of a run's code that differ after an edit of a user's file."""
    path = folder / f"{name}.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    file_digest.cache_clear()  # a process keeps the code that it has begun with
    return changed_modules(code)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("mine")
    for name, content in FILES.items():
        path = root / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return root


def test_an_edit_of_a_module_that_was_loaded_makes_a_row_old_and_no_other_edit_does(
    folder, monkeypatch
):
    """Installed packages, Python's own modules and ours do not count."""
    paths = {"PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])}
    command = [sys.executable, "-c", textwrap.dedent(LOADED)]
    found = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ | paths)
    code = json.loads(found.stdout)
    own = {name.replace("/", ".") for name in FILES} - {"mine_bystander", "mine_package.__init__"}
    assert {*own, "mine_package", "spherenorm_tiny"} <= code.keys()
    tops = {name.partition(".")[0] for name in code}
    assert not tops & {"torch", "numpy", "pytest", "json", "mine_bystander"}
    assert not any(top.startswith("spherenorm") for top in tops - {"spherenorm_tiny"})
    monkeypatch.syspath_prepend(folder)
    after = partial(changed_after, code, folder)
    assert after("mine_bystander", "import mine_recipe", "import mine_recipe, sys") == []
    assert after("mine_package/scales", "1.0", "2.0") == ["mine_package.scales"]
    assert after("mine_package/scales", "2.0", "1.0") == []
    assert after("mine_recipe", "K = 0.5", "K = 0.25") == ["mine_recipe"]


def test_the_name_of_a_run_is_its_spec():
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
    assert len({run_of(spec).name for spec in specs}) == len(specs)


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
        ids.append(run.name)
        assert run.splits.train.path(0).is_relative_to(root)
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
