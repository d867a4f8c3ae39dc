"""Tasks: data, model, loss and metric, one file each, found by name."""

from spherenorm_experiments.tasks._lookup import find_task as find_task
from spherenorm_experiments.tasks._lookup import find_task_class as find_task_class
from spherenorm_experiments.tasks._lookup import make_task as make_task
from spherenorm_experiments.tasks._lookup import task_classes as task_classes
