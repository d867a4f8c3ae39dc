"""The text of the file: its class, and the functions of its step."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spherenorm.export.body import broken
from spherenorm.export.foreach import NotEntrywiseError, on_lists


@dataclass(frozen=True)
class Kind:
    """Weights that one text steps, all flattened to two dimensions or one.

    Attributes:
        name: of the text's function.
        test: true of their `weight`, and not of those of the kinds before.
        within: the kind whose text they take, if it is right for them.
        shapes: three that are recorded.
    """

    name: str
    test: str
    within: str | None
    shapes: tuple[tuple[int, ...], ...]


KINDS = (
    Kind("number", "weight.shape == (1,)", "vector", ((1,),) * 3),
    Kind("vector", "weight.ndim == 1", None, ((7,), (11,), (13,))),
    Kind("entry", "weight.shape == (1, 1)", "row", ((1, 1),) * 3),
    Kind("column", "weight.shape[1] == 1", "tall", ((7, 1), (11, 1), (13, 1))),
    Kind("row", "weight.shape[0] == 1", "matrix", ((1, 7), (1, 11), (1, 13))),
    Kind("square", "weight.shape[0] == weight.shape[1]", "matrix", ((7, 7), (11, 11), (13, 13))),
    Kind("tall", "weight.shape[0] > weight.shape[1]", "matrix", ((11, 7), (13, 5), (17, 3))),
    Kind("matrix", "True", None, ((7, 11), (5, 13), (3, 17))),
)


@dataclass(frozen=True)
class Head:
    """The words and the arguments of the file's class.

    Attributes:
        name: of the class.
        summary: a sentence or two.
        decided: a sentence on the arguments that it has no more; "" if there are none.
        defaults: of the others, by name.
    """

    name: str
    summary: str
    decided: str
    defaults: Mapping[str, Any]


FILE = '''"""{name}, an optimizer of plain torch.

{summary}

{shapes}{fixed}
"""

{imports}import torch


class {name}(torch.optim.Optimizer):
{init}
{defaults}
        super().__init__(params, defaults)

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(saved, params):  # in their own type, to which torch does not keep
            for key, value in state_dict["state"].get(i, {{}}).items():
                if isinstance(value, torch.Tensor):
                    self.state[p][key] = value.to(p.device, copy=True)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
{loop}
        return loss

'''

ONE_BY_ONE = """            for p in group["params"]:
                if p.grad is not None and p.numel():
                    step_one(p, self.state[p], group)"""

STEP_ONE = """
def step_one(p, state, group):
    if p.is_complex():
        raise TypeError("no step for a complex weight")
    weight, grad = (x.flatten(1) if x.ndim > 1 else x.reshape(-1) for x in (p, p.grad)){refusal}
    if p.dtype in (torch.bfloat16, torch.float16):
        weight, grad = weight.float(), grad.float()
    start, step = functions_of(weight)
    if not state:
        state.update(start(weight, group))
    moved, new = step(weight, grad, state, group)
    state.update(new)
    p.copy_(moved.reshape(p.shape))


def functions_of(weight):
{choice}
"""

ON_LISTS = """            params = [p for p in group["params"] if p.grad is not None and p.numel()]
            for alike in by_kind(params, self.state):
                step_list(alike, self.state, group)"""

STEP_LIST = """
def by_kind(params, states):
    found = {}
    for p in params:
        kind = p.dtype, p.device, states[p].get("step")
        found.setdefault(kind, []).append(p)
    return found.values()


def step_list(params, states, group):
    if params[0].is_complex():
        raise TypeError("no step for a complex weight")
    weight, grad = params, [p.grad for p in params]
    if params[0].dtype in (torch.bfloat16, torch.float16):
        weight, grad = [x.float() for x in weight], [x.float() for x in grad]
    for p, w in zip(params, weight):
        if not states[p]:
            states[p].update(start(w, group))
    state = {key: [states[p][key] for p in params] for key in states[params[0]]}
    if "step" in state:
        state["step"] = state["step"][0]
    moved, new = step(weight, grad, state, group)
    for key, values in new.items():
        for i, p in enumerate(params):
            states[p][key] = values if key == "step" else values[i]
    torch._foreach_copy_(params, moved)
"""


REFUSAL = 'raise ValueError(f"no step for a weight of shape {tuple(weight.shape)}")'


def written(head: Head, functions: Mapping[str, str], owner: Mapping[str, str], flat: bool) -> str:
    """The file.

    Args:
        functions: the text of each kind of weights that has one of its own.
        owner: by kind, the kind whose text it takes; "" if it is refused.
        flat: weights of more than two dimensions are stepped as matrices, and else refused.
    """
    lists = _on_lists(functions) if flat else None
    own = lists or "\n".join(functions.values()) + "\n"
    shapes = (
        "" if lists else "Weights of more than two dimensions are matrices of len(weight) rows. "
    )
    signature = [f"{name}={value!r}" for name, value in head.defaults.items()]
    entries = [f'"{name}": {name}' for name in head.defaults]
    top = FILE.format(
        name=head.name,
        summary=textwrap.fill(head.summary, 100),
        shapes=textwrap.fill(f"{shapes}Half precision is computed with in float32.", 100),
        fixed=head.decided and f"\n\n{textwrap.fill(head.decided, 100)}",
        imports="import math\n\n" if "math." in own else "",
        init=broken("    def __init__(", ["self", "params", *signature], "):"),
        defaults=broken("        defaults = {", entries, "}"),
        loop=ON_LISTS if lists else ONE_BY_ONE,
    )
    if lists:
        return f"{top}{STEP_LIST}{lists}"
    refused = REFUSAL.replace("weight.shape", "p.shape")
    refusal = "" if flat else f"\n    if p.ndim > 2:\n        {refused}"
    return f"{top}{STEP_ONE.format(refusal=refusal, choice=_choice(owner))}{own}"


def _on_lists(functions: Mapping[str, str]) -> str | None:
    """The two functions on lists, where all weights take one of entries alone; else None."""
    if len(functions) > 1:
        return None
    ((kind, text),) = functions.items()
    start, mark, step = text.replace(f"_{kind}(", "(").partition("\n\ndef step(")
    try:
        return f"{start}{mark[:2]}{on_lists(mark[2:] + step)}\n"
    except NotEntrywiseError:
        return None


def _choice(owner: Mapping[str, str]) -> str:
    """The lines that tell which functions a weight takes."""
    lines = []
    for kind in KINDS:
        own = owner[kind.name]
        if kind.within is None or own != owner[kind.within]:
            lines.append((kind.test, f"return start_{own}, step_{own}" if own else REFUSAL))
    (_, last), others = lines[-1], lines[:-1]
    while others and others[-1][1] == last:
        others.pop()
    tests = [f"if {test}:\n    {answer}" for test, answer in others]
    return textwrap.indent("\n".join([*tests, last]), " " * 4)
