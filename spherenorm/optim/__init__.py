"""`torch.optim.Optimizer` classes made from recipes, and the drop-in classes of the library's own.

    opt = spherenorm.optim.AdamP(model.parameters(), lr=1e-3, weight_decay=1e-2)

Everything that a torch optimizer does is here: param_groups, schedulers, state_dict, hooks,
closures, pickling. The state of a parameter is its rule's, under the rule's names; in half
precision it is kept in float32.
"""

from typing import TYPE_CHECKING

from spherenorm import recipes, zoo
from spherenorm.optim.optimizer import RecipeOptimizer, torch_optimizer, unwrap
from spherenorm.optim.param_groups import GroupsOfRecipe as GroupsOfRecipe
from spherenorm.support import unknown_attribute

# The table of drop-in classes. A new recipe needs its line here, and nothing else: `__all__` and
# the pages of the docs are made from these assignments, and type checkers and editors read them.
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
Muown = torch_optimizer(recipes.muown, "Muown")
MDMuon = torch_optimizer(recipes.mdmuon, "MDMuon")
NGPT = torch_optimizer(recipes.ngpt, "NGPT")
Nora = torch_optimizer(recipes.nora, "Nora")
NorMuon = torch_optimizer(recipes.normuon, "NorMuon")
OrthoGrad = torch_optimizer(recipes.orthograd, "OrthoGrad")
Scion = torch_optimizer(recipes.scion, "Scion")

AggMo = torch_optimizer(zoo.aggmo, "AggMo")
QHM = torch_optimizer(zoo.qhm, "QHM")
AdEMAMix = torch_optimizer(zoo.ademamix, "AdEMAMix")
Grokfast = torch_optimizer(zoo.grokfast, "Grokfast")
ScheduleFreeSGD = torch_optimizer(zoo.schedulefree_sgd, "ScheduleFreeSGD")
ScheduleFreeAdamW = torch_optimizer(zoo.schedulefree_adamw, "ScheduleFreeAdamW")
ScheduleFreeAdamC = torch_optimizer(zoo.schedulefree_adamc, "ScheduleFreeAdamC")
GPAAdamW = torch_optimizer(zoo.gpa_adamw, "GPAAdamW")
LookaheadAdamW = torch_optimizer(zoo.lookahead_adamw, "LookaheadAdamW")
EMANesterovAdamW = torch_optimizer(zoo.emanesterov_adamw, "EMANesterovAdamW")
AMSGrad = torch_optimizer(zoo.amsgrad, "AMSGrad")
AdaBelief = torch_optimizer(zoo.adabelief, "AdaBelief")
LaProp = torch_optimizer(zoo.laprop, "LaProp")
Adopt = torch_optimizer(zoo.adopt, "Adopt")
Adan = torch_optimizer(zoo.adan, "Adan")
MarsAdamW = torch_optimizer(zoo.mars_adamw, "MarsAdamW")
CautiousAdamW = torch_optimizer(zoo.cautious_adamw, "CautiousAdamW")
Grams = torch_optimizer(zoo.grams, "Grams")
StableAdamW = torch_optimizer(zoo.stable_adamw, "StableAdamW")
AdamMini = torch_optimizer(zoo.adam_mini, "AdamMini")
Adafactor = torch_optimizer(zoo.adafactor, "Adafactor")
CAME = torch_optimizer(zoo.came, "CAME")
Prodigy = torch_optimizer(zoo.prodigy, "Prodigy")
DAdaptSGD = torch_optimizer(zoo.dadapt_sgd, "DAdaptSGD")
Signum = torch_optimizer(zoo.signum, "Signum")
CautiousLion = torch_optimizer(zoo.cautious_lion, "CautiousLion")
MarsLion = torch_optimizer(zoo.mars_lion, "MarsLion")
SOAP = torch_optimizer(zoo.soap, "SOAP")
Shampoo = torch_optimizer(zoo.shampoo, "Shampoo")
MuonEq = torch_optimizer(zoo.muoneq, "MuonEq")
Muon2 = torch_optimizer(zoo.muon2, "Muon2")
AdaMuon = torch_optimizer(zoo.adamuon, "AdaMuon")
PolarGrad = torch_optimizer(zoo.polargrad, "PolarGrad")
Dion2 = torch_optimizer(zoo.dion2, "Dion2")
RMNP = torch_optimizer(zoo.rmnp, "RMNP")
Mano = torch_optimizer(zoo.mano, "Mano")
RowFloorMuon = torch_optimizer(zoo.rowfloor_muon, "RowFloorMuon")
HyperP = torch_optimizer(zoo.hyperp, "HyperP")
Fromage = torch_optimizer(zoo.fromage, "Fromage")
Nero = torch_optimizer(zoo.nero, "Nero")
Layca = torch_optimizer(zoo.layca, "Layca")
Hyperspherical = torch_optimizer(zoo.hyperspherical, "Hyperspherical")
ObliqueSGD = torch_optimizer(zoo.oblique_sgd, "ObliqueSGD")
MuonSphere = torch_optimizer(zoo.muonsphere, "MuonSphere")
SPEL = torch_optimizer(zoo.spel, "SPEL")
AngularMuown = torch_optimizer(zoo.angularmuown, "AngularMuown")

__all__ = ["RecipeOptimizer", "torch_optimizer", "unwrap"]
__all__ += [name for name, value in vars().items() if hasattr(value, "__wrapped__")]

if not TYPE_CHECKING:  # which would take any name then
    __getattr__ = unknown_attribute(__name__, __all__)
