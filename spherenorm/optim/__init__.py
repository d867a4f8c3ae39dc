"""`torch.optim.Optimizer` classes made from recipes, and the drop-in classes of the library's own.

    opt = spherenorm.optim.AdamP(model.parameters(), lr=1e-3, weight_decay=1e-2)

Everything that a torch optimizer does is here: param_groups, schedulers, state_dict, hooks,
closures, pickling. The state of a parameter is its rule's, under the rule's names; in half
precision it is kept in float32.
"""

from spherenorm import recipes
from spherenorm.optim._optimizer import RecipeOptimizer, torch_optimizer
from spherenorm.optim._wrapped import unwrap

__all__ = [
    "SGD",
    "SGDG",
    "SGDP",
    "SGDW",
    "Adam",
    "AdamG",
    "AdamP",
    "AdamW",
    "RMSprop",
    "RecipeOptimizer",
    "torch_optimizer",
    "unwrap",
]

SGD = torch_optimizer(recipes.sgd, "SGD")
SGDW = torch_optimizer(recipes.sgdw, "SGDW")
SGDP = torch_optimizer(recipes.sgdp, "SGDP")
Adam = torch_optimizer(recipes.adam, "Adam")
AdamW = torch_optimizer(recipes.adamw, "AdamW")
AdamP = torch_optimizer(recipes.adamp, "AdamP")
RMSprop = torch_optimizer(recipes.rmsprop, "RMSprop")
SGDG = torch_optimizer(recipes.sgdg, "SGDG")
AdamG = torch_optimizer(recipes.adamg, "AdamG")
