"""What a trace takes of what users write, it takes right; what it does not, it refuses."""

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.compile import stepper
from spherenorm.compile.graph import UnsupportedGraphError, flatten_numbers, trace
from tests.compile.twins import Twins, random_weights
from tests.compile.words import REFUSED, TRACED, TRACED_ROWS, Word
from tests.conformance.table import Row

ANY_SHAPE = ((6,), (), (1,), (0,))
ROWS = ((6, 6), (3, 4, 2), (1, 5), (5, 1), (1, 1), (0, 4), (4, 0))


def recipe_of(*steps):
    def words(lr=0.1):
        return sn.chain(Word(steps), r.StepSize(lr))

    return words


def agree(recipe, shapes, dtype=torch.float64, **options):
    twins = Twins(Row(sn.torch_optimizer(recipe)), random_weights(shapes), dtype, **options)
    for step in range(3):
        twins.step("random", step)
    twins.agree()


def traced(recipe, shape, dtype=torch.float64):
    numbers, structure = flatten_numbers({"lr": 0.1})
    return trace(recipe, structure, len(numbers), shape, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("word", TRACED | TRACED_ROWS)
def test_what_is_taken(word, dtype):
    recipe = recipe_of((TRACED | TRACED_ROWS)[word])
    for shape in ROWS + (ANY_SHAPE if word in TRACED else ()):
        assert traced(recipe, shape, dtype).outputs
        agree(recipe, [shape], dtype)


@pytest.mark.parametrize("shapes", [ROWS, ANY_SHAPE], ids=["rows", "vectors"])
def test_kernels_take_the_same(shapes, monkeypatch):
    monkeypatch.delattr(stepper.Steps, "by_inductor")
    words = TRACED | (TRACED_ROWS if shapes is ROWS else {})
    agree(recipe_of(*words.values()), shapes, compile=True)


@pytest.mark.parametrize("options", [{}, {"trace": False}, {"compile": True}], ids=["blocked", "own code", "compiled"])
def test_states_have_memory_of_their_own(options):
    """A rule may return its arguments, and one tensor twice, as states; what happens to those later must not change them."""

    def remember(lr=0.1):
        return sn.chain(Word((lambda w, d, m: (d, w), lambda w, d, m: (d, d), lambda w, d, m: (m, d))), r.StepSize(lr))

    for shape in ((3, 2), (3,), ()):
        weight = torch.full(shape, 2.0, requires_grad=True)
        weight.grad = torch.ones(shape)
        optimizer = sn.torch_optimizer(remember)([weight], **options)
        optimizer.step()
        state = optimizer.state[weight]
        weight.grad.zero_()
        state["m1"].add_(1)
        assert [float(state[name].sum()) for name in ("m0", "m1", "m2")] == [value * weight.numel() for value in (2, 2, 1)]


@pytest.mark.parametrize("options", [{}, {"compile": True}], ids=["blocked", "compiled"])
def test_a_state_set_to_a_number(options):
    assert traced(recipe_of(forget), (6, 6)).outputs
    agree(recipe_of(forget), [(6, 6), (6,)], **options)


def forget(w, d, m):
    return d + m, torch.full_like(m, 0.5)


@pytest.mark.parametrize("word", REFUSED)
def test_what_is_refused(word):
    step, said = REFUSED[word]
    with pytest.raises(UnsupportedGraphError, match=said):
        traced(recipe_of(step), (6, 6))
    if word != "random numbers":
        agree(recipe_of(step), [(6, 6)])


def test_a_result_of_another_shape_is_refused():
    with pytest.raises(UnsupportedGraphError, match=r"a result of shape \(6, 1\)"):
        traced(recipe_of(lambda w, d, m: (d, d.sum(1, keepdim=True))), (6, 5))


def test_half_precision_within_a_step_is_refused():
    for rounded in (lambda w, d, m: ((3 * d).bfloat16().float(), m + d), lambda w, d, m: (d, m.bfloat16() + d)):
        with pytest.raises(UnsupportedGraphError, match=r"torch\.bfloat16 within the step"):
            traced(recipe_of(rounded), (6, 6), torch.bfloat16)
    assert traced(recipe_of(lambda w, d, m: (d.bfloat16() + m, m + d)), (6, 6), torch.bfloat16).outputs  # as it was
