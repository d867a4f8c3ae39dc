"""Optimizer classes pickle, by the ways in which programs send them elsewhere."""

import functools
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest
import torch

import spherenorm as sn
from spherenorm import optim

ROOT = Path(__file__).parents[2]
PICKLES = pytest.mark.parametrize("by", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])


def halved_step(lr=0.1):
    return sn.chain(sn.rules.StepSize(lr), sn.rules.StepSize(0.5))


HALVED = _alias = sn.torch_optimizer(halved_step)


class Subclass(optim.AdamP):
    pass


def unheld():
    return sn.torch_optimizer(halved_step, "Nobodys")


def weight():
    return torch.ones(3, requires_grad=True)


@PICKLES
@pytest.mark.parametrize("cls", [optim.AdamP, HALVED, Subclass, unheld(), optim.RecipeOptimizer])
def test_a_class_pickles_as_itself(by, cls):
    assert by.loads(by.dumps(cls)) is cls
    assert by.loads(by.dumps(functools.partial(cls, lr=0.2))).func is cls


@PICKLES
@pytest.mark.parametrize("cls", [optim.AdamP, HALVED, Subclass, unheld()])
def test_an_optimizer_pickles_as_one_of_its_class(by, cls):
    optimizer = by.loads(by.dumps(cls([weight()], lr=0.2)))
    assert type(optimizer) is cls
    assert optimizer.param_groups[0]["lr"] == 0.2


def test_a_class_belongs_to_the_module_that_called_and_has_its_recipes_name():
    assert (HALVED.__module__, HALVED.__qualname__) == (__name__, "HalvedStep")
    assert repr(HALVED([weight()])).startswith("HalvedStep (")
    assert (optim.AdamP.__module__, optim.AdamP.__name__) == ("spherenorm.optim", "AdamP")
    assert (unheld().__module__, unheld().__name__) == (__name__, "Nobodys")
    assert (Subclass.__name__, repr(Subclass)) == ("Subclass", f"<class '{__name__}.Subclass'>")
    assert sn.torch_optimizer("adamp") is sn.torch_optimizer(sn.recipes.adamp)


def test_a_class_that_its_module_has_by_its_name_needs_no_recipe_that_can_be_imported(monkeypatch):
    def local(lr=0.1):
        return sn.chain(sn.rules.StepSize(lr))

    cls = sn.torch_optimizer(local, "NAMED")
    monkeypatch.setattr(sys.modules[__name__], "NAMED", cls, raising=False)
    assert pickle.loads(pickle.dumps(cls)) is cls
    assert type(pickle.loads(pickle.dumps(cls([weight()])))) is cls


def test_a_class_of_a_recipe_that_cannot_be_imported_says_so_when_it_is_pickled():
    def local(lr=0.1):
        return sn.chain(sn.rules.StepSize(lr))

    with pytest.raises((pickle.PicklingError, AttributeError), match="local"):
        pickle.dumps(sn.torch_optimizer(local))


SCRIPT = """
import multiprocessing, pickle
import torch
import spherenorm as sn
import users_module
from users_module import recipe

@sn.recipe
def mine_too(lr=0.1):
    return sn.chain(sn.rules.StepSize(lr))

MineToo = sn.torch_optimizer(mine_too)

def child(classes, optimizers, queue):
    same = [type(optimizer) is cls for cls, optimizer in zip(classes, optimizers)]
    queue.put((classes, same, MineToo in classes))

if __name__ == "__main__":
    import cloudpickle
    unheld = [sn.torch_optimizer(recipe), sn.torch_optimizer(mine_too, "Nobodys")]
    classes = [sn.optim.AdamP, users_module.OPTIMIZER, users_module.Own, MineToo, *unheld]
    assert pickle.loads(pickle.dumps(MineToo)) is MineToo
    optimizers = [cls([torch.ones(2)]) for cls in classes]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(classes, optimizers, queue))
    process.start()
    back, same, held = queue.get()
    process.join()
    assert all(same) and held
    assert all(a is b for a, b in zip(back, classes)), back
    assert cloudpickle.loads(cloudpickle.dumps(classes)) == classes
    (optimizer,) = cloudpickle.loads(cloudpickle.dumps([optimizers[3]]))
    assert type(optimizer) is MineToo
    print(*(f"{cls.__module__}.{cls.__name__}" for cls in classes))
"""


def test_classes_of_a_script_go_to_a_spawned_process_and_back(tmp_path):
    (tmp_path / "users_module.py").write_text(
        "import spherenorm as sn\n"
        + inspect.getsource(halved_step).replace("halved_step", "recipe")
        + "OPTIMIZER = sn.torch_optimizer(recipe)\n"
        + inspect.getsource(Subclass).replace("Subclass(optim", "Own(sn.optim")
    )
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [
        "spherenorm.optim.AdamP",
        "users_module.Recipe",
        "users_module.Own",
        "__main__.MineToo",
        "__main__.Recipe",
        "__main__.Nobodys",
    ]
