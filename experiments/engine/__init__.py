"""One run to its end: execute, train, sweep, store, probes and backends."""

from experiments.engine._backends import BACKENDS as BACKENDS
from experiments.engine._backends import find_backend as find_backend
from experiments.engine._execute import Outcome as Outcome
from experiments.engine._execute import execute as execute
from experiments.engine._files import CorruptFileWarning as CorruptFileWarning
from experiments.engine._files import StoreError as StoreError
from experiments.engine._files import write_file as write_file
from experiments.engine._launch import launch_request as launch_request
from experiments.engine._pool import in_workers as in_workers
from experiments.engine._probes import PROBES as PROBES
from experiments.engine._probes import MeasuredStep as MeasuredStep
from experiments.engine._probes import find_probe as find_probe
from experiments.engine._progress import read_progress as read_progress
from experiments.engine._ranks import ALONE as ALONE
from experiments.engine._ranks import Ranks as Ranks
from experiments.engine._ranks import die_with_parent as die_with_parent
from experiments.engine._ranks import joined as joined
from experiments.engine._rehearsal import cast_of as cast_of
from experiments.engine._rehearsal import rehearse as rehearse
from experiments.engine._run import Run as Run
from experiments.engine._runner import PARALLEL as PARALLEL
from experiments.engine._runner import Runner as Runner
from experiments.engine._store import Busy as Busy
from experiments.engine._store import RunFolder as RunFolder
from experiments.engine._store import Store as Store
from experiments.engine._training import Training as Training
