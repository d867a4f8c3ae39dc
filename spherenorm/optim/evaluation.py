"""Evaluation weights, such as averages: swapped into the parameters, and back."""

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
from spherenorm.optim.param_groups import to_plain
from spherenorm.optim.schedules import last_step, schedules_to_words
from spherenorm.optim.sharded import initial_state_of
from spherenorm.optim.states import complete_state
from spherenorm.rule import Rule, State
from spherenorm.torch_internals import write_count


@dataclass(frozen=True)
class TrainedWeights:
    """The trained weights, while the parameters hold the evaluation weights.

    Attributes:
        weights: a copy of each weight that was swapped out, by its parameter.
        write_counts: torch's counts of the writes to these parameters, at the swap.
    """

    weights: Mapping[Tensor, Tensor]
    write_counts: Mapping[Tensor, int]

    def restore(self) -> int:
        """Write the trained weights back.

        Returns:
            The number of parameters that somebody has written to; those values are lost.
        """
        n_written = sum(write_count(weight) != n for weight, n in self.write_counts.items())
        _write(self.weights)
        return n_written


def swap_in(
    param_groups: Sequence[Mapping[str, Any]],
    rules: Sequence[Rule],
    states: Mapping[Tensor, State],
) -> TrainedWeights:
    """Write `rule.eval_weight` into each weight that has been stepped.

    All are computed before one is written.
    """
    eval_weights: dict[Tensor, Tensor] = {}
    for group, rule in zip(param_groups, rules, strict=True):
        if not rule.has_eval_weight:
            continue
        for weight in group["params"]:
            state = states.get(weight)
            if not state:
                continue  # the weight has not been stepped
            if state.keys() != set(rule.state_keys):
                # A schedule has switched a rule on or off since. The next step would do the same.
                initial = initial_state_of(weight.detach(), rule)
                state = {key: state.get(key, value) for key, value in initial.items()}
            eval_weights[weight] = rule.eval_weight(to_compute_dtype(weight.detach()), state)
    trained = {weight: weight.detach().clone() for weight in eval_weights}
    _write(eval_weights)
    return TrainedWeights(trained, {weight: write_count(weight) for weight in eval_weights})


def _write(values: Mapping[Tensor, Tensor]) -> None:
    with torch.no_grad():
        for weight, value in values.items():
            weight.copy_(value)


class EvalModeMixin(Optimizer):
    """Evaluation mode of an optimizer: its parameters are the evaluation weights for a while."""

    _trained: TrainedWeights | None = None
    """The trained weights, from `eval` to `train`."""

    def rule_of(self, group: Mapping[str, Any], t: int | None = None) -> Rule:
        """Return the rule of one of `param_groups` at step t, or at the next step."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state_dict, with plain numbers in `param_groups`.

        A scheduler may have written numbers of numpy's or views there, and schedules become words
        and numbers. In evaluation mode this is refused, since the evaluation weights would be saved
        as the model beside it.

        Raises:
            RuntimeError: the parameters are the weights to evaluate with.
        """
        self.refuse_in_evaluation("state_dict()")
        state_dict = super().state_dict()
        for group in state_dict["param_groups"]:
            schedules_to_words(group)
            for name, value in group.items():
                if not name.startswith("param"):  # neither params nor param_names
                    group[name] = to_plain(value)
        return state_dict

    def __getstate__(self) -> dict[str, Any]:
        self.refuse_in_evaluation("pickling or copying")
        return super().__getstate__()

    def eval(self) -> None:
        """Put the weights to evaluate with in the place of those that are trained.

        They are `Rule.eval_weight` of each weight: an average of it, say. `train` puts the trained
        ones back, bit by bit. Until then a step, a checkpoint and a second `eval` are refused.
        Without a rule that has another weight to evaluate with (`Rule.has_eval_weight`) nothing
        happens.

        FSDP2 keeps the weights of a forward pass that no backward pass follows: call the model's
        `reshard()` after such a pass, before `train`.

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
        rules = [self.rule_of(group, last_step(group)) for group in self.param_groups]
        if any(rule.has_eval_weight for rule in rules):
            self._trained = swap_in(self.param_groups, rules, self.state)

    def train(self) -> None:
        """Put the trained weights back after `eval`; before one, nothing happens.

        Warns:
            UserWarning: somebody wrote to a weight in between; the written values are lost.
        """
        if self._trained is None:
            return
        n_written = self._trained.restore()
        self._trained = None
        if n_written:
            warnings.warn(
                f"{type(self).__name__}: {n_written} weights were written to after eval(), and "
                "these values are gone",
                stacklevel=2,
            )

    @torch.no_grad()
    def reset_averages(self) -> None:
        """Restart all averages of the weights at the present weights.

        Schedule-free and lookahead optimizers, and `DAdaptSGD`, keep weights in their state,
        `Muown` and `AngularMuown` the norms of rows, and a step goes back to these: call this after
        writing into the parameters (a clamp, a mask, the best weights so far). Moments and the
        step count continue. Other optimizers have nothing to reset; a norm that `FixedNorm` holds
        stays that of the start.

        The mean of all weights (`averaged` with a decay of 1) takes the present weight in the place
        of all earlier ones: its count of steps, which other rules share, continues.

        Raises:
            RuntimeError: the parameters are the weights to evaluate with.
            ValueError: a rule cannot start at a weight, such as `Muown` at a row of zeros. Nothing
                changes then.

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
        restarted_states: list[tuple[Tensor, State, State]] = []
        for group in self.param_groups:
            rule = self.rule_of(group, last_step(group))
            for weight in group["params"]:
                state = self.state.get(weight)
                if not state:
                    continue
                if state.keys() != set(rule.state_keys):
                    # A number that was 0 at the last step has switched a rule on.
                    state = complete_state(rule, weight.detach(), state)
                restarted = rule.restart_weight_averages(
                    to_compute_dtype(weight.detach()), {**state}
                )
                restarted_states.append((weight, state, restarted))
        for weight, state, restarted in restarted_states:
            self.state[weight] = state
            for key, value in restarted.items():
                if value is not state[key]:
                    state[key].copy_(value)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Call `eval` at the start of a block and `train` at its end, however it ends."""
        self.eval()
        try:
            yield
        finally:
            self.train()

    def refuse_in_evaluation(self, what: str) -> None:
        """Refuse what cannot be done from `eval` to `train`.

        Raises:
            RuntimeError: the parameters are the weights to evaluate with.
        """
        if self._trained is not None:
            raise RuntimeError(
                f"{type(self).__name__}: {what} while its parameters are the weights to evaluate "
                "with; call train() first, or evaluate under `with optimizer.evaluating():`"
            )
