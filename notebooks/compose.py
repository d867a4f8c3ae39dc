# %% [markdown]
# # Compose an optimizer, and get its law
#
# An optimizer is a chain of rules. Its norm-growth law is derived from the same lines that train.

# %%
import matplotlib.pyplot as plt
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm_theory import check, equilibrium, norm_growth

# %config InlineBackend.figure_formats = ["svg"]

# %% [markdown]
# ## Two chains
#
# SGD with an averaged momentum and decoupled decay, and the same with a projection in front of the
# decay.


# %%
@sn.recipe
def plain(lr=0.1, momentum=0.9, weight_decay=0.01):
    """An averaged momentum, and decoupled decay."""
    return sn.chain(
        r.ExponentialAverage(momentum),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@sn.recipe
def projected(lr=0.1, momentum=0.9, weight_decay=0.01):
    """The same, without the radial part of the step."""
    return sn.chain(
        r.ExponentialAverage(momentum),
        r.RadialProjection("channel"),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


weight, grad = torch.randn(3, 4), torch.randn(3, 4)
rule = projected(lr=0.1)
new_weight, state = rule.step(weight, grad, rule.init(weight))  # pure: nothing is written to
print({name: tuple(value.shape) for name, value in state.items()})

# %% [markdown]
# ## Promises
#
# `check` tries on it what the library's own recipes keep.

# %%
print(sn.testing.check(projected, only=("pure", "writes into nothing", "shapes", "vmap")))

# %% [markdown]
# ## Two laws
#
# Of the first chain the cross term <w, s> follows a recursion: momentum adds to the growth.

# %%
print(norm_growth(plain).proposition())

# %% [markdown]
# Of the second it is 0.

# %%
law = norm_growth(projected)
assert law.cross == 0
print(law.proposition())

# %% [markdown]
# ## Against runs
#
# `check` trains in float64 and predicts |w|² at every step from its start and the lengths of the
# steps.

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), layout="constrained")
for axis, recipe in zip(axes, (plain, projected), strict=True):
    result = check(recipe, "toy-3d", steps=60, lr=0.5)
    assert result.passed
    (name, norms), *_ = result.weights.items()
    axis.plot(norms.predicted.mean(1) ** 0.5, label="law")
    axis.plot(norms.measured.mean(1) ** 0.5, "k:", label="run")
    axis.set(title=f"|w|, {recipe.__name__}", xlabel="step")
_ = axes[0].legend()

# %% [markdown]
# ## At rest
#
# Growth and decay balance at a norm and a turn that the chain decides.

# %%
print(equilibrium(plain))
print()
print(equilibrium(projected))

# %% [markdown]
# ## And it is an optimizer
#
# `torch_optimizer` makes a `torch.optim.Optimizer` class of a chain, `export` a file of plain
# torch.

# %%
Projected = sn.torch_optimizer(projected)
optimizer = Projected([torch.nn.Parameter(weight)], lr=0.05)
print(optimizer)
print(len(sn.export(projected).splitlines()), "lines as one file")
