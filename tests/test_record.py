"""The recorder: a record carries out what its function does, and changes nothing."""

import inspect

import pytest
import torch

import spherenorm as sn
from spherenorm.operations import DERIVED, OPERATIONS, REDUCTIONS, of_overload
from spherenorm.record import Unsupported, record


def carried_out(written, *inputs):
    """The outputs of a record, by its calls alone."""
    values = {**written.constants, **dict(zip(written.inputs, inputs, strict=True))}

    def of(tree):
        return torch.utils._pytree.tree_map(lambda x: values.get(x, x) if is_value(x) else x, tree)

    def is_value(x):
        return type(x).__name__ == "TensorRef"

    for call in written.live_calls:
        values[call.result] = call.function(*of(call.arguments), **of(call.options))
    return of(written.outputs)


def in_place(x):
    y = x.clone()
    y[0].mul_(2)
    x.add_(y)
    return x, y


FUNCTIONS = {
    "plain": lambda x: x * 2 + x.sum(),
    "a constant": lambda x: x * torch.tensor(0.5, dtype=torch.float64) + torch.ones(3),
    "in place, through a view": in_place,
    "a gradient": torch.func.grad(lambda x: (x / x.square().sum().sqrt()).sum() ** 2),
    "an operation that torch writes in place": lambda x: torch.cosine_similarity(x, x + 1, dim=-1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_record_does_what_its_function_does_and_changes_no_input(name):
    shape = (2, 3) if "view" in name else (3,)
    generator = torch.Generator().manual_seed(0)
    x, other = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    before = x.clone()
    written = record(FUNCTIONS[name], x)
    assert torch.equal(x, before)
    outputs = carried_out(written, other.clone())
    torch.testing.assert_close(outputs, FUNCTIONS[name](other.clone()), rtol=1e-12, atol=1e-12)


def test_calls_that_no_output_needs_are_left_out():
    written = record(lambda x: (x.exp(), x + 1)[1], torch.ones(2))
    assert [call.name for call in written.calls] == ["aten.exp.default", "aten.add.Tensor"]
    assert [call.name for call in written.live_calls] == ["aten.add.Tensor"]


def test_each_call_knows_its_line():
    written = record(lambda x: x.exp(), torch.ones(2))
    assert written.calls[0].line.startswith("test_record.py:")
    assert "x.exp()" in written.calls[0].line


def helper(x):
    return x.abs()


def test_each_call_knows_the_variable_of_its_result():
    """Also through functions that return it; and nothing where the source gives no name."""

    def function(x, y):
        first = x * y + x.exp()
        second: torch.Tensor = helper(first)
        third, fourth = (second.neg()), torch.lerp(x, y, 0.5)
        chosen = {"a": third + fourth}
        return [helper(chosen["a"]), first.square()]

    written = record(function, torch.ones(2), torch.ones(2))
    variables = [(call.packet, call.source.variable) for call in written.calls]
    assert variables == [
        ("mul", ""),
        ("exp", ""),
        ("add", "first"),
        ("abs", "second"),
        ("neg", "third"),
        ("lerp", "fourth"),
        ("add", ""),
        ("abs", ""),
        ("pow", ""),
    ]


def test_a_replaced_field_names_its_value_and_code_without_a_file_names_nothing():
    update = sn.Update(*[torch.ones(2)] * 3)
    written = record(lambda x: update.replace(direction=x.exp()).direction, torch.ones(2))
    assert written.calls[0].source.variable == "direction"
    module = {}
    exec("def function(x):\n    result = x.exp()\n    return result", module)
    assert record(module["function"], torch.ones(2)).calls[0].source.variable == ""


def test_a_users_folder_may_be_called_torch(tmp_path):
    file = tmp_path / "torch" / "own.py"
    file.parent.mkdir()
    file.write_text("def function(x):\n    return x.exp()\n")
    module = {}
    exec(compile(file.read_text(), str(file), "exec"), module)
    written = record(module["function"], torch.ones(2))
    assert written.calls[0].line == "own.py:2: return x.exp()"


@pytest.mark.parametrize("take", [float, bool, torch.Tensor.item, lambda x: [0][int(x)]])
def test_a_number_taken_out_of_a_tensor_is_refused(take):
    with pytest.raises(Unsupported):
        record(lambda x: x * take(x.sum() * 0), torch.ones(2))


# Operations: a row is found by each of its overloads, and by nothing else.


@pytest.mark.parametrize("row", OPERATIONS.values(), ids=OPERATIONS)
def test_a_row_is_found_by_its_overloads(row):
    assert OPERATIONS[row.name] is row
    for overload in row.overloads:
        packet, kind = overload.split(".")
        assert getattr(getattr(torch.ops.aten, packet), kind)  # torch has it
        assert of_overload(f"aten.{overload}") is row
        assert of_overload(f"aten.{packet}_.{kind}") is row  # in place
        assert of_overload(f"mylib.{overload}") is None
    assert of_overload(f"aten.{row.name}.nothing") is None
    # A form has a place for each argument and for nothing else.
    if isinstance(row.cpp, str):
        count = row.cpp.count("{")
        places = [i for i in range(4) if f"{{{i}}}" in row.cpp]
        assert places == [*range(len(places))]
        assert count >= len(places) >= 1
        assert row.accepts(len(places), {})
        assert row.accepts(len(places), {"alpha": 1})
        assert not row.accepts(len(places) + 1, {})
        assert not row.accepts(len(places) - 1, {})
        assert not row.accepts(len(places), {"alpha": 2})
    else:
        assert row.accepts(1, {}) is (row.cpp is DERIVED)


def on_numbers(name):
    """An operation of Python on tensors, as a reader of rows has it."""
    if name == "sum":
        return lambda x, dims=None, keepdim=False: (
            x.sum() if dims is None else x.sum(dims, keepdim=keepdim)
        )
    return {
        "add": lambda x, y, alpha=1: x + alpha * y,
        "sub": lambda x, y, alpha=1: x - alpha * y,
        "gt": lambda x, y: x > y,
        "ge": lambda x, y: x >= y,
        "le": lambda x, y: x <= y,
        "full": lambda size, value: torch.full(tuple(size), float(value), dtype=torch.float64),
        "count": lambda x, dims=None: x.numel() if dims is None else x.shape[dims[0]],
        "maximum": lambda x, y: torch.maximum(x, torch.as_tensor(y, dtype=x.dtype)),
        "minimum": lambda x, y: torch.minimum(x, torch.as_tensor(y, dtype=x.dtype)),
    }.get(name) or getattr(torch, name)


class Reader:
    def __getattr__(self, name):
        return on_numbers(name)


X = torch.tensor([[-1.5, 0.3, 25.0], [0.0, 2.0, -0.7]], dtype=torch.float64)
Y = torch.tensor([[0.5, -0.3, 1.0], [2.0, 2.0, 0.1]], dtype=torch.float64)
Z = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.9, 4.0]], dtype=torch.float64)
DERIVATIONS = {
    "sub.Tensor": [(X, Y), (X, Y, 3)],
    "rsub.Tensor": [(X, Y), (X, Y, 3)],
    "addcmul.default": [(X, Y, Z), (X, Y, Z, 0.5)],
    "addcdiv.default": [(X, Y, Z), (X, Y, Z, -0.5)],
    "lerp.Scalar": [(X, Y, 0.3), (X, Y, 0.8)],
    "square.default": [(X,)],
    "rsqrt.default": [(Z,)],
    "log1p.default": [(Z,)],
    "sigmoid.default": [(X,)],
    "softplus.default": [(X,), (X, 2.0, 0.5), (X, 2), (10 * X, 1, 3.0)],
    "clamp.default": [(X, -0.5, 0.7), (X, None, 0.7), (X, -0.5)],
    "linalg_vector_norm.default": [(X,), (X, 2, [1], True)],
    "mean.default": [(X,)],
    "mean.dim": [(X, [1], True)],
    "zeros_like.default": [(X,)],
    "ones_like.default": [(X,)],
    "new_full.default": [(X, [2], 0.5)],
    "zeros.default": [([2],)],
    "ones.default": [([2],)],
}


def test_every_derived_form_is_tried():
    derived = {row.name for row in OPERATIONS.values() if row.derived}
    assert derived == {of_overload(f"aten.{name}").name for name in DERIVATIONS}


@pytest.mark.parametrize("overload", DERIVATIONS)
def test_a_derived_form_is_torchs(overload):
    packet, kind = overload.split(".")
    operation = getattr(getattr(torch.ops.aten, packet), kind)
    keyword = [a.name for a in operation._schema.arguments if a.kwarg_only]
    row = of_overload(f"aten.{overload}")
    for given in DERIVATIONS[overload]:
        positional = [a for a in operation._schema.arguments if not a.kwarg_only]
        options = dict(zip(keyword, given[len(positional) :], strict=False))
        expected = operation(*given[: len(positional)], **options)
        parameters = list(inspect.signature(row.derived).parameters)[1:]
        found = row.derived(Reader(), *given[: len(parameters)])
        torch.testing.assert_close(
            torch.as_tensor(found), expected.double(), rtol=1e-12, atol=1e-12, check_dtype=False
        )


def test_another_norm_has_no_form():
    with pytest.raises(NotImplementedError):
        OPERATIONS["linalg_vector_norm"].derived(Reader(), X, 1)


@pytest.mark.parametrize(("name", "start", "two"), [("sum", 0, 5), ("any", False, True)])
def test_a_reduction_is_of_its_parts(name, start, two):
    row = REDUCTIONS[name]
    assert (row.name, float(row.start)) == (name, float(start))
    assert "{0}" in row.cpp
    assert "{1}" in row.cpp
