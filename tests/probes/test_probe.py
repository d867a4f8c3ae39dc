"""Probes against the metrics and the rules themselves, and training that they leave as it is."""

import contextlib
import copy
import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import spherenorm as sn
from spherenorm import metrics
from spherenorm.core import Update
from tests.harness.refusals import refuses
from tests.probes.models import OPTIMIZERS, Model, its_test, loss_of, root_mean_square, train


def expected(name, view, test, before, after, grad, state):
    """One measurement, by the library's metrics and by the test's own update."""
    found = test.update(Update(before, grad, grad), state)[0].invariance
    passed = [
        (flag.double().mean().item(), v, v.units(flag.expand_as(v.norm(before))))
        for flag, v in zip(found.flags, found.views, strict=True)
        if flag.any()
    ]
    return {
        "weight": name,
        "view": view,
        "norm_before": root_mean_square(metrics.norm(before, view)),
        "norm": root_mean_square(metrics.norm(after, view)),
        "effective_step": root_mean_square(metrics.effective_step(before, after, view)),
        "turn": root_mean_square(metrics.angular_update(before, after, view)),
        "cosine": root_mean_square(metrics.cosine(before, grad, view)),
        "invariant": passed[0][0] if passed else 0.0,
        "invariant_view": str(passed[0][1]) if passed else None,
    }, passed[0][2] if passed else torch.zeros(0)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_it_measures_what_the_metrics_and_the_rules_say(kind):
    model = Model()
    optimizer = OPTIMIZERS[kind](model)
    names = {p: name for name, p in model.named_parameters()}
    found = sn.probe(optimizer, every=2, model=model, block=3, units=True)
    snapshots = {}
    for step in train(model, optimizer, 9):
        snapshots[step] = {
            name: (
                p.detach().clone(),
                torch.zeros_like(p) if p.grad is None else p.grad.clone(),
                {k: v.clone() for k, v in optimizer.state.get(p, {}).items()},
            )
            for p, name in names.items()
        }
    snapshots[10] = {name: (p.detach().clone(),) for p, name in names.items()}
    found.close()
    measured = {(m.step, m.weight): m for m in found.measurements}
    count = 0
    for group in optimizer.param_groups:
        test = its_test(optimizer, group)
        for weight in (w for w in group["params"] if w.ndim >= 2):
            for step in (2, 4, 6, 8):
                name, own = names[weight], test.state_names
                before, grad, state = snapshots[step][name]
                state = state if state.keys() >= set(own) else test.init(weight.detach())
                after = snapshots[step + 1][name][0]
                m = measured[step, name]
                wanted, flags = expected(
                    name, m.view, test, before, after, grad, {k: state[k] for k in own}
                )
                for key, value in wanted.items():
                    got = getattr(m, key)
                    if isinstance(value, float):
                        # (a turn in float64 from the sums has 1e-8 of the step)
                        assert got == pytest.approx(value, rel=1e-5, abs=1e-9, nan_ok=True), key
                    else:
                        assert got == value, key
                assert torch.equal(m.units.invariant, flags)
                assert m.norm == pytest.approx(root_mean_square(m.units.norm))
                count += 1
    assert len(found.measurements) == count


def test_views_are_the_declared_ones():
    model = Model()
    optimizer = OPTIMIZERS["groups"](model)
    views = {m.weight: m.view for m in measured_once(model, optimizer)}
    assert views["up.weight"] == "dim=1"
    assert views["twins.0.weight"] == "groups=4"
    assert views["conv.weight"] == views["head.weight"] == "channel"
    declared = {"conv.weight": "layer", "head.weight": None}
    views = {m.weight: m.view for m in measured_once(model, optimizer, views=declared)}
    assert views["conv.weight"] == "layer"
    assert "head.weight" not in views
    assert {m.view for m in measured_once(model, optimizer, views="layer")} == {"layer"}


def measured_once(model, optimizer, **arguments):
    with sn.probe(optimizer, every=1, model=model, **arguments) as found:
        for _ in train(model, optimizer, 1):
            pass
    return found.measurements


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*((kind, torch.float32) for kind in OPTIMIZERS), ("AdamP", torch.bfloat16)],
)
def test_training_does_not_change_by_a_bit(kind, dtype):
    runs = []
    for every in (None, 1, 3):
        torch.manual_seed(1)
        model = Model().to(dtype)
        optimizer = OPTIMIZERS[kind](model)
        found = every and sn.probe(optimizer, every=every, block=2)
        for _ in train(model, optimizer, 7):
            torch.rand(1)
        if found:
            found.close()
        state = [x for each in optimizer.state.values() for x in each.values()]
        runs.append([*model.state_dict().values(), *state, torch.rand(3)])
    for run in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(run, runs[0], strict=True))


class HostReads(TorchDispatchMode):
    """Lists the operations that make the host wait for a device, or copy to one."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        waits = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select")
        if name.removeprefix("aten::") in waits or "cpu" in str((kwargs or {}).get("device")):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_step_reads_nothing_back_before_a_block_is_full(kind):
    """Weights without memory have no numbers that a host could read: it would be an error."""
    model = Model().to("meta")
    optimizer = OPTIMIZERS[kind](model)
    found = sn.probe(optimizer, every=1, block=1000)
    for step in range(17):
        for p in model.parameters():
            p.grad = torch.empty_like(p)
            optimizer.state[p] = dict(optimizer.state[p])
        reads = HostReads()
        with reads if step else contextlib.nullcontext():  # a first step makes the layout
            found._before()
            found._after()
        assert not reads.found
    assert found._waiting


def test_closures_accumulation_and_skipped_steps():
    model = Model()
    optimizer = sn.optim.SGDP(model.parameters(), lr=0.1, momentum=0.9)
    with sn.probe(optimizer, every=1, model=model) as found:

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, 0)
            loss.backward()
            return loss

        before = model.conv.weight.detach().clone()
        optimizer.step(closure)
        optimizer.zero_grad()
        for part in range(2):
            (loss_of(model, part) / 2).backward()
        total = model.head.weight.grad.clone()
        head = model.head.weight.detach().clone()
        optimizer.step()
    first = next(m for m in found.measurements if m.weight == "conv.weight")
    assert first.step == 1
    assert first.norm_before == pytest.approx(root_mean_square(metrics.norm(before)))
    assert first.cosine < 1e-3
    second = [m for m in found.measurements if m.weight == "head.weight"][1]
    assert second.cosine == pytest.approx(root_mean_square(metrics.cosine(head, total)))


def test_weights_that_come_later_are_measured_and_names_are_known():
    model = Model()
    optimizer = torch.optim.SGD(model.head.named_parameters(), lr=0.1)
    with sn.probe(optimizer, every=1) as found:
        for _ in train(model, optimizer, 1):
            pass
        optimizer.add_param_group({"params": [("more", model.conv.weight)]})
        for _ in train(model, optimizer, 1):
            pass
    assert [(m.step, m.weight) for m in found.measurements] == [
        (1, "weight"),
        (2, "weight"),
        (2, "more"),
    ]
    plain = torch.optim.SGD(model.head.parameters(), lr=0.1)
    assert [m.weight for m in measured_once(model, plain)] == ["head.weight"]
    with sn.probe(plain, every=1) as found:
        plain.step()
    assert [m.weight for m in found.measurements] == ["0"]


def test_it_counts_on_from_a_checkpoint_and_hands_over_before_it():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    blocks = []
    found = sn.probe(optimizer, every=2, to=blocks.append, model=model)
    for _ in train(model, optimizer, 3):
        pass
    saved = found.state_dict()
    assert saved == {"step": 3}
    assert {m.step for block in blocks for m in block} == {2}
    found.close()
    resumed = sn.probe(optimizer, every=2, to=blocks.append, model=model)
    resumed.load_state_dict(copy.deepcopy(saved))
    for _ in train(model, optimizer, 3):
        pass
    resumed.close()
    assert [block[0].step for block in blocks] == [2, 4]
    assert {m.step for m in blocks[-1]} == {4, 6}
    for _ in train(model, optimizer, 2):  # closed probes are gone
        pass
    assert len(blocks) == 2
    with pytest.raises(ValueError, match="has a step"):
        resumed.load_state_dict({})


def test_a_law_predicts_what_it_says():
    """Of a projected step |w'| = |w| / cos(turn): a function of it, and an object."""
    model = Model()
    optimizer = sn.optim.SGDP(model.parameters(), lr=0.1)

    def law(m):
        return m.norm_before / math.cos(m.turn)

    class Predicts:
        predict = staticmethod(law)

    for each in (law, Predicts()):
        measured = measured_once(model, optimizer, law=each, views="layer")
        invariant = [m for m in measured if m.invariant_view == "layer"]
        assert invariant
        for m in invariant:
            assert m.predicted == pytest.approx(m.norm, rel=1e-6)
        assert all(m.predicted == pytest.approx(law(m)) for m in measured)


def test_infinite_weights_and_gradients_give_null():
    weight = nn.Parameter(torch.tensor([[1.0, math.inf], [1.0, 2.0]]))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    with sn.probe(optimizer, every=1) as found:
        weight.grad = torch.ones(2, 2)
        optimizer.step()
        with torch.no_grad():
            weight.fill_(1.0)
        weight.grad = torch.tensor([[1e30, 0.0], [0.0, -1e30]])
        optimizer.step()
        weight.grad = torch.full((2, 2), math.nan)
        optimizer.step()
    first, second, third = (m.plain() for m in found.measurements)
    assert first["norm"] is None
    assert second["cosine"] == pytest.approx(math.sqrt(0.5))
    assert second["norm"] == pytest.approx(math.sqrt(2))
    assert third["cosine"] is None
    assert third["norm"] is None
    assert third["norm_before"] == pytest.approx(math.sqrt(2))


def test_zero_rows_empty_weights_and_sparse_gradients():
    zero, empty = nn.Parameter(torch.tensor([[0.0, 0], [3, 4]])), nn.Parameter(torch.ones(0, 3))
    optimizer = torch.optim.SGD([zero, empty], lr=1.0)
    with sn.probe(optimizer, every=1) as found:
        zero.grad, empty.grad = torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.ones(0, 3)
        optimizer.step()
    (only,) = found.measurements
    assert only.turn == only.effective_step == 0
    assert math.isnan(only.cosine)
    assert only.norm == pytest.approx(math.sqrt((2 + 25) / 2))
    table = nn.Embedding(6, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    with sn.probe(optimizer, every=1) as found:
        table(torch.tensor([1, 4])).square().sum().backward()
        optimizer.step()
    assert found.measurements[0].cosine == pytest.approx(1)


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"every": 0}, ValueError, ["every", 0]),
        ({"every": 2.5}, ValueError, ["every", 2.5]),
        ({"every": True}, ValueError, ["every", True]),
        ({"block": -1}, ValueError, ["block", -1]),
        ({"to": "runs"}, TypeError, ["to", "runs", "Page"]),
        ({"views": "rows"}, ValueError, ["view", "rows"]),
        ({"views": "dim=3"}, ValueError, ["linear.weight", "dim=3"]),
        ({"views": {"head.weight": "groups=4"}}, ValueError, ["head.weight", "groups=4"]),
        ({"views": {"head.wieght": "layer"}}, ValueError, ["head.wieght", "head.weight"]),
        ({"model": nn.Linear(3, 2)}, ValueError, ["model"]),
        ({"optimizer": Model()}, TypeError, ["optimizer", "Model"]),
        (
            {"optimizer": torch.optim.SGD([torch.ones(2, 2, dtype=torch.complex64)])},
            TypeError,
            ["real"],
        ),
    ],
)
def test_wrong_arguments_are_refused_and_leave_no_hook(arguments, error, named):
    model, said = Model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"optimizer": optimizer, "model": model, **arguments}
    if isinstance(given["optimizer"], torch.optim.SGD) and given["optimizer"] is not optimizer:
        del given["model"]
    with refuses(*named, by=error):
        sn.probe(given.pop("optimizer"), to=given.pop("to", said.append), **given)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    optimizer.step()
    assert not said
