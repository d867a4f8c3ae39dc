"""The audit of a model: which of its weights are scale-invariant, and groups for an optimizer.

- `audit.py`: `audit` collects evidence at several points and prints as a table.
- `audited_model.py`: the model as a function of a point, its precision and eps included.
- `sensitivity.py`: gradients and scaled weights at one point; `verdict.py`: what they mean.
- `roles.py`: the role of each parameter, by the operations that use it.
- `transfer.py`: the learning rate of each parameter, from a narrow base model.
- `param_groups.py`: a recipe for each parameter.
- `coordinate_check.py`: whether the changes of a model's outputs depend on its width.
"""

from spherenorm.audit import transfer
from spherenorm.audit.audit import Audit, audit
from spherenorm.audit.coordinate_check import CoordinateCheck, coordinate_check
from spherenorm.audit.param_groups import Assignment, ParamGroups, param_groups
from spherenorm.audit.roles import Role, Roles, roles
from spherenorm.audit.verdict import Finding, Verdict

__all__ = [
    "Assignment",
    "Audit",
    "CoordinateCheck",
    "Finding",
    "ParamGroups",
    "Role",
    "Roles",
    "Verdict",
    "audit",
    "coordinate_check",
    "param_groups",
    "roles",
    "transfer",
]
