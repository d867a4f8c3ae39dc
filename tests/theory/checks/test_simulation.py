"""The simulation loop, against steps by hand."""

import torch

from spherenorm import find_recipe
from spherenorm_theory.algebra import structure_of
from spherenorm_theory.checks import PROBLEMS, simulate


def test_transitions_are_the_steps_of_the_rule():
    rule, problem = find_recipe("sgdp")(lr=0.1, momentum=0.9), PROBLEMS["network"]
    generator = torch.Generator().manual_seed(3)
    weights = problem.start(generator)
    states = {name: rule.init(weight) for name, weight in weights.items()}
    for transitions in simulate(rule, problem, steps=3, seed=3):
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        problem.loss(leaves, generator).backward()
        for name, transition in transitions.items():
            assert torch.equal(transition.weight, weights[name])
            assert torch.equal(transition.grad, leaves[name].grad)
            weights[name], states[name] = rule.step(weights[name], leaves[name].grad, states[name])
            assert torch.equal(transition.new_weight, weights[name])
            assert torch.equal(transition.new_state["momentum"], states[name]["momentum"])


def test_the_structure_is_what_chooses_code():
    given = {"lr": 0.1, "betas": (0.9, 0.99), "momentum": 0, "nesterov": True, "view": "layer"}
    assert structure_of(given) == {"momentum": 0, "nesterov": True, "view": "layer"}
