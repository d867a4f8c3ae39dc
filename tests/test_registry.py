import pytest

import spherenorm as sn
from spherenorm import registry


def test_names():
    assert registry.names()[:9] == ["sgd", "sgdw", "sgdp", "adam", "adamw", "adamp", "rmsprop", "sgdg", "adamg"]
    assert sn.find_recipe("adamp") is sn.recipes.adamp
    assert sn.find_recipe("spherenorm.recipes:adamp") is sn.recipes.adamp
    assert registry.reference(sn.recipes.adamp) == "adamp"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("adampp", r"no recipe is named 'adampp'; did you mean adamp"),
        ("zzz", "known: adam, adamg, adamp"),
        ("no_such_module:f", "there is no module 'no_such_module'"),
        ("spherenorm.recipes:adamq", "has no function 'adamq'; did you mean adam"),
    ],
)
def test_nothing_of_that_name(spec, message):
    with pytest.raises(ValueError, match=message):
        sn.find_recipe(spec)


def test_a_name_is_taken_once_but_may_be_redefined(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))

    def define():
        @sn.recipe
        def mine(lr=0.1):
            return sn.chain(sn.rules.StepSize(lr))

        return mine

    define()
    again = define()  # a notebook cell run again
    assert sn.find_recipe("mine") is again

    def sgd():
        return sn.chain()

    with pytest.raises(ValueError, match=r"'sgd' is taken by spherenorm\.recipes:sgd"):
        sn.recipe(sgd)


def test_hyper_parameters_need_names():
    def loose(**hyper_parameters):
        return sn.chain()

    with pytest.raises(TypeError, match="hyper-parameters need names"):
        sn.recipe(loose)
