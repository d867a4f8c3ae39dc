"""The audit of a model: which of its weights are scale-invariant, and what follows for optimizers.

`_model` is the model as a function of a point, `_sensitivity` the measure, `_verdict` its
reading, `_scaling` the check of both, `_roles` the parts that parameters play, `_param_groups` the
groups for an optimizer.
"""

from spherenorm.audit.audit import audit
from spherenorm.audit.param_groups import Assignment, ParamGroups, param_groups
from spherenorm.audit.report import Audit
from spherenorm.audit.roles import Role, Roles, roles
from spherenorm.audit.verdict import Finding, Verdict

__all__ = [
    "Assignment",
    "Audit",
    "Finding",
    "ParamGroups",
    "Role",
    "Roles",
    "Verdict",
    "audit",
    "param_groups",
    "roles",
]
