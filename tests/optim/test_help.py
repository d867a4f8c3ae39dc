"""`help` of an optimizer class tells its arguments and their meaning."""

import pytest

import spherenorm as sn
from spherenorm._registry import defaults_of
from spherenorm.optim._help import arguments_of

OWN = [
    n for n in sn.recipe_names() if sn.find_recipe(n).__module__.startswith("spherenorm.recipes")
]


@pytest.mark.parametrize("name", OWN)
def test_every_hyper_parameter_of_a_recipe_has_a_meaning_of_its_own(name):
    meanings = arguments_of(sn.find_recipe(name))
    assert all(meanings.values()), meanings
    assert "as for" not in " ".join(meanings.values())


def test_the_class_has_all_arguments_once_with_defaults():
    doc = sn.optim.AdamP.__doc__
    for name in ("params", *defaults_of(sn.recipes.adamp), "maximize", "backend"):
        assert doc.count(f"\n    {name}: ") == 1, name
    assert "decay rates of the two moments, each in [0, 1) (default (0.9, 0.999))." in doc
    assert doc.index("Args:") < doc.index("Source: Heo et al. 2021")
    assert max(map(len, doc.splitlines())) <= 100


def test_a_recipe_without_a_docstring_has_arguments_all_the_same():
    def mine(lr=0.1, share=0.5):
        return sn.chain(sn.rules.StepSize(lr))

    doc = sn.torch_optimizer(mine).__doc__
    assert "recipe mine" in doc
    assert "lr: the learning rate (default 0.1)." in doc
    assert "share: (default 0.5)" in doc
