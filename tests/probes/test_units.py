"""The units that a probe reports, against the metrics and the rules themselves."""

import json
import math

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm import metrics
from spherenorm._update import Update
from tests.probes.models import OPTIMIZERS, Model, its_test, root_mean_square, train


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_units_are_those_of_the_metrics_and_the_rules(kind):
    model = Model().double()
    optimizer = OPTIMIZERS[kind](model)
    found = sn.probe(optimizer, every=1, model=model, units=True, block=2)
    wanted = {}
    names = {p: name for name, p in model.named_parameters()}
    for step in train(model, optimizer, 3):
        for group in optimizer.param_groups:
            test = its_test(optimizer, group)
            for p in (p for p in group["params"] if p.ndim >= 2):
                own = test.state_names
                state = {k: v.clone() for k, v in optimizer.state.get(p, {}).items() if k in own}
                grad = torch.zeros_like(p) if p.grad is None else p.grad.clone()
                given = p.detach().clone(), grad, state or test.init(p.detach()), test
                wanted[step, names[p]] = (p, *given)
        for (when, _), entry in wanted.items():  # the weights after the step before
            if when == step - 1 and len(entry) == 5:
                wanted[when, names[entry[0]]] = (*entry, entry[0].detach().clone())
    found.close()
    checked = 0
    for m in (m for m in found.measurements if m.step < 3):
        _, before, grad, state, test, after = wanted[m.step, m.weight]
        assert m.units.norm.shape == m.units.turn.shape
        for got, value in (
            (m.units.norm_before, metrics.norm(before, m.view)),
            (m.units.norm, metrics.norm(after, m.view)),
            (m.units.effective_step, metrics.effective_step(before, after, m.view)),
            (m.units.turn, metrics.angular_update(before, after, m.view)),
            (m.units.cosine, metrics.cosine(before, grad, m.view)),
        ):
            torch.testing.assert_close(got, value, rtol=1e-6, atol=1e-10, equal_nan=True)
        assert m.norm == pytest.approx(root_mean_square(m.units.norm))
        invariance = test.update(Update(before, grad, grad), state)[0].invariance
        flags = {
            str(view): flag for view, flag in zip(invariance.views, invariance.flags, strict=True)
        }
        if m.invariant_view is None:
            assert not len(m.units.invariant)
            continue
        view = sn.as_view(m.invariant_view)
        flag = view.units(flags[m.invariant_view].expand_as(view.norm(before)))
        assert torch.equal(m.units.invariant, flag)
        assert m.invariant == pytest.approx(flag.double().mean().item())
        checked += 1
    assert checked


def test_writers_take_units(tmp_path):
    weight = nn.Parameter(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with sn.probe(optimizer, every=1, units=True, to=sn.probes.JSONLines(tmp_path)):
        weight.grad = torch.tensor([[4.0, -3.0], [0.0, 0.0]])
        optimizer.step()
    (line,) = (json.loads(x) for file in tmp_path.iterdir() for x in file.read_text().splitlines())
    assert line["units"]["norm_before"] == [5, 0]
    assert line["units"]["cosine"] == [0, None]
    assert line["units"]["turn"] == pytest.approx([math.atan(0.1), 0])
    pytest.importorskip("pyarrow")
    folder = tmp_path / "table"
    with sn.probe(optimizer, every=1, units=True, to=sn.probes.Parquet(folder)):
        optimizer.step()
    from pyarrow import parquet

    (file,) = folder.iterdir()
    (row,) = parquet.read_table(file).to_pylist()
    assert row["units"]["norm_before"][1] == 0
    assert row["units"]["cosine"][1] is None
    assert len(row["units"]["invariant"]) in (0, 2)
