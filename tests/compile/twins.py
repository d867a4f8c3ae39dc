"""Two optimizers on equal weights: one runs the rule's own code, and the other must agree."""

import warnings

import pytest
import torch

from spherenorm import optim
from tests.harness.rows import ROWS, HyperballMine, RotationalMine, Row
from tests.harness.gradients import FAMILIES, gradient

GAINS = (optim.Muown, optim.AngularMuown, optim.MDMuon)
PINNED = (optim.MuonH, optim.MuonSphere, optim.SPEL)
MATRICES = (optim.Muon, optim.NorMuon, optim.Scion, *PINNED, *GAINS)
"""They multiply matrices, for which kernels have no word."""
TANGENTS = (optim.Nora, optim.OrthoGrad, RotationalMine)
"""They give what a projection leaves a length, which of a radial gradient is rounding alone."""
LONG = (optim.AdamC, optim.Lars, optim.Lamb, optim.NGPT, HyperballMine)
"""Their rules are those of other rows."""
KERNEL_ROWS = [
    *(row for row in ROWS if row.cls not in (optim.SGDG, optim.AdamG, *TANGENTS, *MATRICES)),
    Row(optim.SGDG, {"alpha": 0.0}),
    Row(optim.AdamG, {"alpha": 0.0, "nu": None}),
    Row(optim.AdamP, {"views": ("layer",)}),
    Row(optim.SGDP, {"momentum": 0.5, "views": ("channel",), "dampening": 0.5}),
]
"""The recipes whose steps can be traced."""

TYPED_ROWS = [
    pytest.param(
        row,
        dtype,
        id=f"{row.id}-{name}",
        marks=[pytest.mark.long] * (place % 2 != wide or row.cls in LONG),
    )
    for place, row in enumerate(KERNEL_ROWS)
    for wide, (name, dtype) in enumerate((("float64", torch.float64), ("float32", torch.float32)))
]
"""Each of them in both types; one of the two is among the long checks."""

SHAPES = (
    (6, 5),
    (4, 3, 3, 3),
    (70, 1001),
    (3, 70000),
    (5,),
    (5000,),
    (),
    (6, 1),
    (1, 6),
    (0, 4),
    (4, 0),
    (0,),
)


class Twins:
    """Equal weights: `own` step by the rule's own code under `own_opt`, `fast` under `fast_opt`.

    `fast_opt` is made with `options`; a kernel is made by default.
    """

    def __init__(self, row, start, dtype=torch.float64, **options):
        options = {"backend": "compiled", **options}
        self.own = [w.detach().clone().to(dtype).requires_grad_() for w in start]
        self.fast = [w.detach().clone().requires_grad_() for w in self.own]
        with warnings.catch_warnings():  # of weights that do not suit a sphere
            warnings.simplefilter("ignore", UserWarning)
            self.own_opt = row.cls(self.own, backend="rule", **row.settings)
            self.fast_opt = row.cls(self.fast, **row.settings, **options)

    def __iter__(self):
        return zip(self.own, self.fast, strict=True)

    def step(self, family=None, step=0):
        self.set_gradients(family, step)
        self.step_as_they_are()

    def set_gradients(self, family=None, step=0):
        """By default each weight has a family of its own, another one at each step."""
        for i, (own, fast) in enumerate(self):
            kind = (
                (family or FAMILIES[(i + step) % 4]) if own.ndim > 1 and own.numel() else "random"
            )
            own.grad = fast.grad = gradient(
                kind, own.detach(), torch.Generator().manual_seed(step), step
            )

    def step_as_they_are(self):
        self.own_opt.step()
        self.fast_opt.step()

    def agree(self):
        for own, fast in self:
            assert_close(fast, own)
            assert self.fast_opt.state[fast].keys() == self.own_opt.state[own].keys()
            for name, value in self.own_opt.state[own].items():
                scale = value.abs().max().clamp(min=1) if value.numel() else 1
                assert_close(self.fast_opt.state[fast][name] / scale, value / scale)


def random_weights(shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def assert_close(ours, theirs):
    # float64 as the oracles elsewhere; float32 to a few roundings of the largest entries.
    rtol, atol = (1e-12, 1e-12) if theirs.dtype is torch.float64 else (2e-5, 2e-6)
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)
