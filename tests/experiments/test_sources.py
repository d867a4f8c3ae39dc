"""What decides a run's outcome is in its identity: whoever edits it gets a new run, whoever edits anything else does not."""

import importlib
import sys

import pytest
from spherenorm_tiny import tiny_spec

from experiments import sources
from experiments.spec import Spec

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
    "mine_package/scales": "from . import numbers\n\ndef scaled(x):\n    return numbers.FACTOR * x\n",
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
    "mine_data": "def shifted(x):\n    return x\n",
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
        return Spec("mine_task:Mine", "mine_recipe:mine", {"lr": 0.1}, epochs=1, batch_size=16).id

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
        pytest.param("mine_task", "super().data()", "(super().data())[:]", id="task"),
        pytest.param("mine_data", "return x", "return x[:]", id="task's helper"),
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

    used = modules("spherenorm.rules.projection", "spherenorm.chain")
    assert {
        "spherenorm.rules.projection",
        "spherenorm.rule",
        "spherenorm.views",
        "spherenorm.geometry",
    } <= used
    assert not used & {"spherenorm.rules.clip", "spherenorm.optim", "spherenorm"}
    own = modules("spherenorm_tiny")
    assert "spherenorm.rules.momentum" in own
    assert not {
        name
        for name in own
        if name.startswith(("torch", "experiments.", "spherenorm.compile", "dataclasses"))
    }
    assert modules("experiments.tasks.digits") == {"experiments.tasks.digits"}


def test_a_recipe_in_no_file_is_refused():
    scope = {"__name__": "nowhere_at_all"}
    exec("def mine(lr=0.1): pass", scope)
    with pytest.raises(ValueError, match="the source of nowhere_at_all cannot be read"):
        sources.source_digest(scope["mine"])


def test_the_rest_of_a_recipe_on_the_sphere_counts():
    on_sphere, plain = tiny_spec("sgdg", lr=0.1), tiny_spec("sgd", lr=0.1)
    assert on_sphere.euclidean(on_sphere.rule())["recipe"] == "sgd"
    assert plain.euclidean(plain.rule()) is None
    own = Spec(
        on_sphere.task, "sgdg", {"lr": 0.1}, rest={"recipe": "spherenorm_tiny:careful", "lr": 0.1}
    )
    assert own.fingerprints()["recipe_source"] != on_sphere.fingerprints()["recipe_source"]
