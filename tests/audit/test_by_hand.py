"""The audit against weights that are scaled by hand, on models that are not in the zoo."""

import pytest
import torch

from spherenorm import audit
from tests.audit.by_hand import true_views
from tests.audit.strangers import MODELS


def test_no_output_drowns_another():
    torch.manual_seed(5)
    net, *inputs = MODELS["an_output_of_a_very_large_spread"]()
    assert audit(net, *inputs)[0].figures["channel"].limit > 0.01


def test_an_audit_draws_its_own_random_numbers():
    net, *inputs = MODELS["dropout_on_both_sides"]()
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        found.append(audit(net, *inputs).to_dict())
    assert found[0] == found[1]


MISSED = {("weight_norm_before_a_norm", "0.parametrizations.weight.original0")}
"""Its units have one entry, which cannot turn: no output depends on it."""


@pytest.mark.parametrize("name", MODELS)
def test_the_audit_finds_what_scaling_by_hand_shows(name):
    torch.manual_seed(5)
    net, *inputs = MODELS[name]()
    truth = true_views(net, inputs)
    findings = audit(net, *inputs)
    assert [each.name for each in findings] == list(truth)
    for each in findings:
        if (name, each.name) in MISSED:
            assert (each.view, str(each.verdict)) == (None, "no evidence")
            assert truth[each.name] is not None
        else:
            assert each.view == truth[each.name]
