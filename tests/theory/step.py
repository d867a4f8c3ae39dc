"""A law against plain steps of its rule: `law.evaluate` is `rule.step`, and its claims are true."""

import torch

from spherenorm_theory.evaluate import OutsideError


def assert_is_the_step(law, shape, numbers, generator, orthogonal=True, steps=4):
    """`law.evaluate` is `rule.step` along a run of a weight of this shape, within the law.

    Args:
        numbers: values for the hyper-parameters, by the names of inputs.
        orthogonal: whether <w, g> = 0 for each unit, in the law and in the run.
    """
    traced = law.step.traced
    all_numbers = {
        n: float(traced.given_values.get(s, numbers.get(n, 0))) for n, s in traced.symbols.items()
    }
    rule = traced.build({n: torch.tensor(x, dtype=torch.float64) for n, x in all_numbers.items()})
    view, inside = law.verified_domain.view, traced.opaque_states
    weight = torch.randn(shape, dtype=torch.float64, generator=generator)
    state, compared = rule.init(weight), 0
    for _ in range(steps):
        grad = torch.randn(shape, dtype=torch.float64, generator=generator)
        radial = view.radial_coefficient(weight, grad)
        grad = grad - (radial - (0.0 if orthogonal else 2.0)) * weight
        expected, after = rule.step(weight, grad, dict(state))
        try:
            law_weight, states = law.evaluate(
                weight, grad, state, **{n: all_numbers[n] for n in traced.symbolic}
            )
        except OutsideError:  # such as that the first step is of another kind
            pass
        else:
            compared += 1
            transparent_states = {n: x for n, x in after.items() if n not in inside}
            exact = {"rtol": 1e-10, "atol": 1e-10, "check_dtype": False}
            torch.testing.assert_close(law_weight, expected, **exact)
            torch.testing.assert_close(states, transparent_states, **exact)
        weight, state = expected, after
    return compared
