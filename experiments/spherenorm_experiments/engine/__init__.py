"""One run to its end: execute, train, sweep, store, probes and backends."""

from spherenorm_experiments.engine._backends import find_backend as find_backend
from spherenorm_experiments.engine._execute import execute as execute
from spherenorm_experiments.engine._optimizers import rate_factor as rate_factor
from spherenorm_experiments.engine._probes import PROBES as PROBES
from spherenorm_experiments.engine._probes import MeasuredStep as MeasuredStep
from spherenorm_experiments.engine._processes import launch_request as launch_request
from spherenorm_experiments.engine._ranks import Ranks as Ranks
from spherenorm_experiments.engine._ranks import die_with_parent as die_with_parent
from spherenorm_experiments.engine._ranks import joined as joined
from spherenorm_experiments.engine._rehearsal import cast_of as cast_of
from spherenorm_experiments.engine._rehearsal import rehearse as rehearse
from spherenorm_experiments.engine._rehearsal import time_step as time_step
from spherenorm_experiments.engine._rows import Row as Row
from spherenorm_experiments.engine._rows import find_rows as find_rows
from spherenorm_experiments.engine._rows import folders_of as folders_of
from spherenorm_experiments.engine._rows import rows_in as rows_in
from spherenorm_experiments.engine._run import Run as Run
from spherenorm_experiments.engine._runner import Outcome as Outcome
from spherenorm_experiments.engine._runner import Runner as Runner
from spherenorm_experiments.engine._training import Training as Training
from spherenorm_experiments.files import Busy as Busy
from spherenorm_experiments.files import CorruptFileWarning as CorruptFileWarning
from spherenorm_experiments.files import StoreError as StoreError
from spherenorm_experiments.files import write_file as write_file
from spherenorm_experiments.store import RunFolder as RunFolder
from spherenorm_experiments.store import Store as Store
