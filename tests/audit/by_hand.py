"""The truth about weights, found by scaling them by hand.

No formula of the library is used: in float64, each unit is multiplied by a factor of its own, one
slice at a time, with every eps next to 0, at three places. A view is true if no output changes.
"""

import copy
import random

import torch

CHANGE = 1e-7
"""Relative, of an output: more is not rounding."""


def true_views(net, inputs):
    """The finest true view of each weight of two or more dimensions, by name; None if none is."""
    names = [n for n, p in net.named_parameters() if p.ndim > 1 and not p.is_complex()]
    places = [_place(net, seed) for seed in range(3)]
    batch = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    starts = [_outputs(place, batch) for place in places]
    return {
        name: next(
            (
                view
                for view, cuts in views_of(dict(net.named_parameters())[name].shape)
                if all(
                    _unchanged(start, _outputs(_scaled(place, name, cuts), batch))
                    for place, start in zip(places, starts, strict=True)
                )
            ),
            None,
        )
        for name in names
    }


def views_of(shape):
    """Views by name from fine to coarse, each as slices: (dimension, first, last)."""
    dims = range(min(len(shape), 2 if len(shape) > 3 else 3))
    for dim in dims:
        if dim == 0 or shape[dim] > 1:
            name = f"dim={dim}" if dim else "channel"
            yield name, [(dim, i, i + 1) for i in range(shape[dim])]
    for dim in dims:
        for groups in range(shape[dim] // 2, 1, -1):
            if shape[dim] % groups == 0:
                size = shape[dim] // groups
                name = f"dim={dim},groups={groups}" if dim else f"groups={groups}"
                yield name, [(dim, i * size, (i + 1) * size) for i in range(groups)]
    yield "layer", [(0, 0, shape[0])]


def _place(net, seed):
    """A copy in float64, next to no eps, with all parameters moved unless `seed` is 0."""
    place = copy.deepcopy(net).double()
    for module in place.modules():
        if isinstance(getattr(module, "eps", None), float):
            module.eps = 1e-30
    generator = torch.Generator().manual_seed(seed)
    for parameter in place.parameters() if seed else ():
        if parameter.requires_grad and not parameter.is_complex():
            noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.5
            parameter.data += noise * (parameter.data.abs() * 0.4 + 0.1)
    return place


def _scaled(place, name, cuts):
    scaled = copy.deepcopy(place)
    weight = dict(scaled.named_parameters())[name].data
    draw = random.Random(3)
    for dim, first, last in cuts:
        weight.narrow(dim, first, last - first).mul_(draw.uniform(0.4, 2.5))
    return scaled


def _outputs(place, batch):
    torch.manual_seed(0)
    outputs = copy.deepcopy(place)(*(x.clone() for x in batch))
    outputs = outputs.values() if isinstance(outputs, dict) else [outputs]
    return [torch.view_as_real(x) if x.is_complex() else x.detach() for x in outputs]


def _unchanged(start, now):
    pairs = zip(start, now, strict=True)
    return all(float((x - y).abs().max()) <= CHANGE * float(x.abs().max()) for x, y in pairs)
