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
    "NGPT",
    "SGD",
    "SGDG",
    "SGDP",
    "SGDW",
    "SPEL",
    "Adam",
    "AdamC",
    "AdamG",
    "AdamH",
    "AdamP",
    "AdamW",
    "AngularMuown",
    "Lamb",
    "Lars",
    "Lion",
    "MDMuon",
    "Muon",
    "MuonH",
    "MuonSphere",
    "Muown",
    "NorMuon",
    "Nora",
    "OrthoGrad",
    "RMSprop",
    "RecipeOptimizer",
    "Scion",
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
AdamC = torch_optimizer(recipes.adamc, "AdamC")
AdamH = torch_optimizer(recipes.adamh, "AdamH")
Lamb = torch_optimizer(recipes.lamb, "Lamb")
Lars = torch_optimizer(recipes.lars, "Lars")
Lion = torch_optimizer(recipes.lion, "Lion")
Muon = torch_optimizer(recipes.muon, "Muon")
MuonH = torch_optimizer(recipes.muonh, "MuonH")
MuonSphere = torch_optimizer(recipes.muonsphere, "MuonSphere")
Muown = torch_optimizer(recipes.muown, "Muown")
AngularMuown = torch_optimizer(recipes.angularmuown, "AngularMuown")
SPEL = torch_optimizer(recipes.spel, "SPEL")
MDMuon = torch_optimizer(recipes.mdmuon, "MDMuon")
NGPT = torch_optimizer(recipes.ngpt, "NGPT")
Nora = torch_optimizer(recipes.nora, "Nora")
NorMuon = torch_optimizer(recipes.normuon, "NorMuon")
OrthoGrad = torch_optimizer(recipes.orthograd, "OrthoGrad")
Scion = torch_optimizer(recipes.scion, "Scion")
