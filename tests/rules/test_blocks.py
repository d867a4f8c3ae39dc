"""A block of a tensor steps as a weight of its own."""

import pytest
import torch

import spherenorm as sn
from tests.harness import refuses

RECIPES = {
    "adamp": {"weight_decay": 0.1},
    "muon": {"weight_decay": 0.1},
    "normuon": {},
    "soap": {},
    "hyperball(lion)": {"lr": 0.1},
    "low_precision(adamw)": {"lr": 0.1, "states": "nearest"},
}
CASES = {
    "grouped queries": ((12, 8), {"shares": (4, 1, 1)}),
    "fused": ((12, 8), {"shares": (1, 1, 1)}),
    "one": ((12, 8), {"shares": (1,)}),
    "layers and experts": ((2, 3, 6, 4), {"dims": 2, "shares": (1,) * 6}),
    "half of the experts": ((2, 2, 6, 4), {"dims": 2, "shares": (3, 1)}),
    "three dimensions": ((2, 1, 3, 6, 4), {"dims": 3, "shares": (2, 1)}),
    "no row": ((0, 8), {"shares": (4, 1, 1)}),
}


def apart(x, dims=1, shares=(1,)):
    rows = x.reshape(-1, *x.shape[dims:])
    return rows.split([share * len(rows) // sum(shares) for share in shares])


WIDE_BLOCKS = {("soap", "grouped queries"), ("soap", "fused")}
"""Their Gram matrices have a null space, whose basis is arbitrary: on some processors a stack has
another one than single matrices, and `backend="compiled"` refuses it."""


@pytest.mark.parametrize(
    ("recipe", "case", "backend"),
    [
        (recipe, case, backend)
        for recipe in RECIPES
        for case in CASES
        for backend in ("auto", "compiled")
        if backend == "auto" or (recipe, case) not in WIDE_BLOCKS
    ],
)
def test_blocks_step_as_weights_of_their_own(recipe, case, backend):
    shape, block_settings = CASES[case]
    torch.manual_seed(0)
    whole_weight = torch.nn.Parameter(torch.randn(shape, dtype=torch.float64))
    parts = [
        torch.nn.Parameter(part.clone()) for part in apart(whole_weight.detach(), **block_settings)
    ]
    settings = RECIPES[recipe]
    fused = sn.torch_optimizer(f"blocks({recipe})")(
        [whole_weight], backend=backend, **settings, **block_settings
    )
    separate_optimizer = sn.torch_optimizer(recipe)(parts, **settings)
    for _ in range(3):
        whole_weight.grad = torch.randn(shape, dtype=torch.float64)
        for part, grad in zip(parts, apart(whole_weight.grad, **block_settings), strict=True):
            part.grad = grad.clone()
        fused.step()
        separate_optimizer.step()
    after = torch.cat([part.detach() for part in parts]).reshape(shape)
    torch.testing.assert_close(whole_weight.detach(), after, rtol=1e-12, atol=1e-12)


def test_a_stack_in_two_dimensions_has_a_matrix_for_each_pair_of_indices():
    weight, grad = torch.randn(2, 2, 3, 5, 4, dtype=torch.float64)
    rule = sn.bind("blocks(muon)", dims=2, view="channel", lr=0.1).rule
    new_weight, _ = rule.step(weight, grad, rule.init(weight))
    muon = sn.bind("muon", lr=0.1).rule
    for i, j in torch.cartesian_prod(torch.arange(2), torch.arange(3)):
        expected_matrix, _ = muon.step(weight[i, j], grad[i, j], muon.init(weight[i, j]))
        torch.testing.assert_close(new_weight[i, j], expected_matrix, rtol=1e-12, atol=1e-12)


def test_a_note_of_the_weights_shape_goes_to_its_block():
    class Reads(sn.Rule):
        def update(self, update, state):
            return update.replace(direction=update.notes["second_moment"]), {}

    moments = sn.rules.AdaptiveMoments(0.9, 0.5, eps=0.0)
    rule = sn.chain(moments, sn.rules.Blocks((Reads(), Reads()), (1, 2)))
    weight, grad = torch.zeros(3, 2), torch.arange(1.0, 7.0).reshape(3, 2)
    chain_without_blocks = sn.chain(moments, Reads())
    new_weight, _ = rule.step(weight, grad, rule.init(weight))
    torch.testing.assert_close(
        new_weight, chain_without_blocks.step(weight, grad, chain_without_blocks.init(weight))[0]
    )


def test_what_has_no_blocks_is_refused():
    matrix = [torch.nn.Parameter(torch.ones(12, 8))]
    fused = sn.torch_optimizer("blocks(muon)")
    with refuses("Blocks", "shares=(4, 1, 2)", 7, (12, 8)):
        fused(matrix, shares=(4, 1, 2))
    with refuses("blocks", "shares", 3, by=TypeError):
        fused(matrix, shares=3)
    fused(matrix)  # queries, keys and values alike
    with refuses("Blocks", "shares=(1, 1, 1)", 3):
        fused([torch.ones(8, 8)])
    with refuses("Blocks", "shares", (0, 1)):
        fused(matrix, shares=(0, 1))
    with refuses("Blocks", "dims=3", (12, 8)):
        fused(matrix, dims=3)
    with refuses("Blocks", "rules", "shares", "1 rules", "2 shares"):
        sn.rules.Blocks((sn.rules.Sign(),), (1, 1))
    for within in ("averaged(adamw)", "prodigy"):
        with refuses("Blocks", "around"):
            sn.bind(f"blocks({within})").rule  # noqa: B018
    with refuses("LowPrecisionState", "blocks(low_precision(adamw))"):
        sn.bind("low_precision(blocks(adamw))").rule  # noqa: B018
    with refuses("manifold"):
        sn.bind("blocks(sgdg)").rule  # noqa: B018
    with refuses("blocks(adamw)", "shapes", by=sn.ExportError):
        sn.export("blocks(adamw)", shares=(4, 1, 1))
