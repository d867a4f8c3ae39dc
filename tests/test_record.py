"""The recorder: a record carries out what its function does, and changes nothing."""

import pytest
import torch

from spherenorm.record import RecordError, record


def carried_out(written, *inputs):
    """The outputs of a record, by its calls alone."""
    values = {**written.constants, **dict(zip(written.inputs, inputs, strict=True))}

    def of(tree):
        return torch.utils._pytree.tree_map(lambda x: values.get(x, x) if is_value(x) else x, tree)

    def is_value(x):
        return type(x).__name__ == "Value"

    for call in written.needed:
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
    assert [call.name for call in written.needed] == ["aten.add.Tensor"]


def test_each_call_knows_its_line():
    written = record(lambda x: x.exp(), torch.ones(2))
    assert written.calls[0].line.startswith("test_record.py:")
    assert "x.exp()" in written.calls[0].line


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
    with pytest.raises(RecordError, match="reads a value of a tensor"):
        record(lambda x: x * take(x.sum() * 0), torch.ones(2))
