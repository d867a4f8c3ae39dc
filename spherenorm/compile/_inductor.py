"""A step that torch.compile makes, of whatever the library's own generators cannot print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from spherenorm._numerics import Scalar
from spherenorm.compile._guard import Guard
from spherenorm.compile._memory import commit
from spherenorm.core import State


class Inductor:
    """The rule's step under torch.compile, weight by weight, whatever their sizes (but 0 and 1)."""

    name = "Inductor"

    def __init__(self, guard: Guard, reason: str, device: torch.device, ndim: int) -> None:
        self.reason = reason
        self.identity = self
        # Arguments of the compiled code, at the present values of the numbers.
        self.slots = [torch.zeros((), dtype=dtype, device=device) for dtype in guard.dtypes]
        rule = guard.with_numbers(self.slots)

        def pure(weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
            return rule.step(weight, grad, state)

        # A code object of its own: Dynamo gives one up after eight compilations.
        pure.__code__ = pure.__code__.replace(co_name=f"step_of_{ndim}_dimensions")
        self.compiled = torch.compile(pure, fullgraph=True, dynamic=True, backend=_inductor)

    def result(
        self, weight: Tensor, grad: Tensor, state: State, numbers: Sequence[Scalar]
    ) -> tuple[Tensor, State]:
        """The new weight and state, which are new tensors: in place, Inductor's C++ backend fails
        on a fused row projection."""
        for slot, value in zip(self.slots, numbers, strict=True):
            slot.copy_(value) if isinstance(value, Tensor) else slot.fill_(value)
        # Inductor reads memory as it is, and that of a weight may hold its negative.
        found: tuple[Tensor, State] = self.compiled(weight.detach().resolve_neg(), grad, state)
        return found

    def __call__(
        self, weight: Tensor, grad: Tensor, state: State, numbers: Sequence[Scalar]
    ) -> None:
        commit(weight.detach(), grad, state, *self.result(weight, grad, state, numbers))


def _inductor(graph: Any, inputs: Any) -> Callable[..., Any]:
    """Inductor without the scaled forms of addition.

    torch 2.13's Inductor drops the alpha of torch.add(a @ b, c, alpha=k) when it fuses the sum into
    the product: a momentum after a matrix product was 10 to 20 % off from the second step on.
    """
    import torch._functorch.config
    import torch._inductor.config
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    def scaled(operation: Any) -> Any:
        def without_alpha(x: Any, y: Any, *, alpha: Any = 1) -> Any:
            return NotImplemented if alpha == 1 else operation(x, alpha * y)

        return without_alpha

    aten = torch.ops.aten
    table = {
        **select_decomp_table(),
        aten.add.Tensor: scaled(torch.add),
        aten.sub.Tensor: scaled(torch.sub),
    }
    # AOTAutograd's cache on disk does not tell graphs apart by how they are decomposed; a rounding
    # to half precision within a step is the rule's own.
    with (
        torch._functorch.config.patch(enable_autograd_cache=False),
        torch._inductor.config.patch(emulate_precision_casts=True),
    ):
        run: Any = compile_fx(graph, inputs, decompositions=table)
    return run  # type: ignore[no-any-return]
