"""The weights to evaluate with, in the place of those that are trained, and back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from spherenorm.numerics import to_compute_dtype
from spherenorm.optim.group import as_saved
from spherenorm.rule import Rule, State, initial_state


@dataclass(frozen=True)
class Held:
    """The trained weights, while the parameters are those to evaluate with.

    Attributes:
        trained: a copy of each weight that was exchanged, by its parameter.
        versions: torch's counts of the writes to these parameters, since the exchange.
    """

    trained: Mapping[Tensor, Tensor]
    versions: Mapping[Tensor, int]

    def restore(self) -> int:
        """Write the trained weights back.

        Returns:
            The number of parameters that somebody has written to; what he wrote is gone.
        """
        changed = sum(weight._version != count for weight, count in self.versions.items())
        _write(self.trained)
        return changed


def exchanged(
    param_groups: Sequence[Mapping[str, Any]],
    rules: Sequence[Rule],
    states: Mapping[Tensor, State],
) -> Held:
    """Write `rule.eval_weight` into each weight that has been stepped; all are computed before one is
    written.
    """
    read: dict[Tensor, Tensor] = {}
    for group, rule in zip(param_groups, rules, strict=True):
        for weight in group["params"] if rule.has_eval_weight else ():
            state = states.get(weight)
            if not state:  # it has not been stepped
                continue
            if state.keys() != {
                *rule.state_keys
            }:  # a schedule has switched a rule, as a step would find
                fresh = initial_state(rule, weight.detach())
                state = {key: state.get(key, value) for key, value in fresh.items()}
            read[weight] = rule.eval_weight(to_compute_dtype(weight.detach()), state)
    trained = {weight: weight.detach().clone() for weight in read}
    _write(read)
    return Held(trained, {weight: weight._version for weight in read})


def _write(values: Mapping[Tensor, Tensor]) -> None:
    with torch.no_grad():
        for weight, value in values.items():
            weight.copy_(value)


class Evaluated(Optimizer):
    """An optimizer whose parameters can be the weights to evaluate with for a while."""

    _held: Held | None = None
    """The trained weights, from `eval` to `train`."""

    def rule_of(self, group: Mapping[str, Any]) -> Rule:
        """The rule of one of `param_groups`, at its present hyper-parameters."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with plain numbers in `param_groups`, whatever a schedule has written there.

        Refused while the parameters are the weights to evaluate with, since those of the model
        would be saved beside it.
        """
        self.refuse_in_evaluation("state_dict()")
        state_dict = super().state_dict()
        for group in state_dict["param_groups"]:
            group.update({n: as_saved(x) for n, x in group.items() if not n.startswith("param")})
        return state_dict

    def __getstate__(self) -> dict[str, Any]:
        self.refuse_in_evaluation("pickling or copying")
        return super().__getstate__()

    def eval(self) -> None:
        """Put the weights to evaluate with in the place of those that are trained.

        They are `Rule.eval_weight` of each weight: an average of it, say. `train` puts the trained ones
        back, bit by bit. Until then a step, a checkpoint and a second `eval` are refused. Without
        a rule that reads out another weight (`Rule.has_eval_weight`) nothing happens.

        FSDP2 keeps the weights of a forward pass that no backward pass follows: call the model's
        `reshard()` behind one, before `train`.

        Raises:
            RuntimeError: the parameters are the weights to evaluate with already.

        Example:
            >>> weight = torch.tensor([1.0], requires_grad=True)
            >>> optimizer = sn.torch_optimizer("averaged(sgd)")([weight], lr=0.5, decay=1)
            >>> for _ in range(2):
            ...     weight.grad = torch.tensor([1.0])
            ...     optimizer.step()
            >>> with optimizer.evaluating():
            ...     print(weight.item())  # the mean of 0.5 and 0
            0.25
            >>> weight.item()
            0.0
        """
        self.refuse_in_evaluation("a second eval()")
        rules = [self.rule_of(group) for group in self.param_groups]
        if any(rule.has_eval_weight for rule in rules):
            self._held = exchanged(self.param_groups, rules, self.state)

    def train(self) -> None:
        """Put the trained weights back after `eval`; before one, nothing happens.

        Warns:
            UserWarning: somebody wrote to a weight in between, and what he wrote is gone.
        """
        if self._held is None:
            return
        changed = self._held.restore()
        self._held = None
        if changed:
            lost = f"{changed} weights were written to after eval(), and these values are gone"
            warnings.warn(f"{type(self).__name__}: {lost}", stacklevel=2)

    @torch.no_grad()
    def reset_averages(self) -> None:
        """Begin all averages of the weights anew, at the weights as they are now.

        Schedule-free and lookahead optimizers, and `DAdaptSGD`, keep weights in their state,
        `Muown` and `AngularMuown` the norms of rows, and a step goes back to these: call this after
        writing into the parameters (a clamp, a mask, the best weights so far). Moments and the
        count of steps go on. Other optimizers have nothing to reset; a norm that `FixedNorm` holds
        stays that of the start.

        Raises:
            RuntimeError: the parameters are the weights to evaluate with.

        Example:
            >>> weight = torch.tensor([3.0], requires_grad=True)
            >>> optimizer = sn.optim.ScheduleFreeSGD([weight], lr=0.5)
            >>> weight.grad = torch.tensor([1.0])
            >>> optimizer.step()
            >>> with torch.no_grad():
            ...     _ = weight.clamp_(max=1)
            >>> optimizer.reset_averages()
            >>> optimizer.state[weight]["z"]
            tensor([1.])
        """
        self.refuse_in_evaluation("reset_averages()")
        for group in self.param_groups:
            rule = self.rule_of(group)
            for weight in group["params"]:
                state = self.state.get(weight)
                if not state or state.keys() != {
                    *rule.state_keys
                }:  # it begins anew at its next step
                    continue
                restarted = rule.restart_averages(to_compute_dtype(weight.detach()), {**state})
                for key, value in restarted.items():
                    if value is not state[key]:
                        state[key].copy_(value)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """`eval` at the start of a block and `train` at its end, however it ends."""
        self.eval()
        try:
            yield
        finally:
            self.train()

    def refuse_in_evaluation(self, what: str) -> None:
        """Raise an error that names what cannot be done from `eval` to `train`."""
        if self._held is not None:
            now = "its parameters are the weights to evaluate with"
            remedy = "call train() first, or evaluate under `with optimizer.evaluating():`"
            raise RuntimeError(f"{type(self).__name__}: {what} while {now}; {remedy}")
