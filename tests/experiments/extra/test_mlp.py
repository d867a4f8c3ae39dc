"""The network of scale-invariant weights only."""

import torch

from spherenorm_experiments.extra.mlp import Mlp


def test_every_weight_of_the_mlp_is_invariant_row_by_row():
    task = Mlp()
    params, batch = task.start(3), task.batches(3)(5)
    reference = task.loss(params, batch)
    for name, weight in params.items():
        factors = torch.rand(len(weight), 1, dtype=torch.float64) + 0.5
        torch.testing.assert_close(
            task.loss({**params, name: factors * weight}, batch),
            reference,
            rtol=1e-9,
            atol=0,
        )
    assert torch.equal(task.batches(3)(5)[0], batch[0])
    assert not torch.equal(task.batches(4)(5)[0], batch[0])


def test_the_mlp_measures_gradients_that_do_not_depend_on_the_norm():
    task = Mlp()
    params = {name: weight[None] for name, weight in task.start(0).items()}
    size, count = task.gradients(params)
    again, _ = task.gradients({name: 3 * weight for name, weight in params.items()})
    torch.testing.assert_close(size, again, rtol=1e-6, atol=0)
    alive = len([x for x in task.batches(0)(0)[0].T if x.std() > 0])
    assert (
        24**2 < 2 * count.item() - 24**2 <= 64**2
    )  # the second layer's units have 24 weights, the first one's up to 64
    assert 2 * count.item() - 24**2 >= alive**2  # one batch shows some of the pixels that change
