# %% [markdown]
# # Compare in ten minutes
#
# Is an optimizer better than another, or was it luck? `spherenorm compare` tunes both alike on
# every seed, and says what the scores show. Here a small comparison runs in seconds; with the
# default options it takes some minutes on two cores, and decides more.

# %%
from pathlib import Path

from spherenorm_experiments import load

_ = Path("mine.py").write_text('''
import spherenorm as sn
from spherenorm import rules as r


@sn.recipe
def tangent_sgd(lr=0.1, momentum=0.9):
    """SGD with momentum, of which only the tangential part moves a weight."""
    return sn.chain(r.HeavyBall(momentum), r.RadialProjection("channel"), r.StepSize(lr))
''')

# %% [markdown]
# ## One command
#
# The task: handwritten digits that come with scikit-learn, a network of dense layers before
# BatchNorm. Two optimizers, three rates, six seeds.

# %% language="bash"
# python -m spherenorm compare --task digits --optimizers sgd,mine:tangent_sgd \
#     --search lr=1e-2:1 --set momentum=0.9 --trials 3 --seeds 6 --epochs 2 --jobs 0

# %% [markdown]
# Read the last lines first. Each says by how many points an optimizer scores higher, with a 95 %
# interval over seeds, and a verdict:
#
# - *better* or *worse*: the difference is there;
# - *equivalent*: it was shown to be smaller than a point;
# - *inconclusive*: there may be one, and these seeds do not tell.
#
# The page that the command names has the score at each rate, the norms and the effective steps.
#
# ## The runs as a table
#
# All of a store is one pandas frame.

# %%
frame = load("runs")
columns = ["recipe", "lr", "seed", "test", "norm_start", "norm_last"]
print(frame[columns].head(6).to_string(index=False))

# %% [markdown]
# ## What the norms did
#
# The norm of the scale-invariant weights, last over start, by rate: momentum makes that of SGD
# grow, the projection does not let it.

# %%
frame["growth"] = frame.norm_last / frame.norm_start
print(frame.pivot_table("growth", "lr", "recipe").round(2).to_string())

# %% [markdown]
# More: [experiments](../../experiments.md). A task of your own is one file:
# [training](../../training.md).
