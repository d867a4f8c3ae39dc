"""Note which sources compute what earlier ones did: runs of a store keep their identity.

    python -m tests.experiments.same_sources STORE

A run whose code was moved, split or renamed has other digests of sources, and would train again.
Of each task and recipe whose digests differ from a stored run's, one run trains anew in an empty
store. If its summary and the bytes of its records are those of the stored one, the digests are
noted in `experiments/spherenorm_experiments/core/_equal_sources.py`; if one differs, none is.

It is no proof: other settings of a task or recipe may compute other numbers. Review the change,
too.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spherenorm_experiments import core
from spherenorm_experiments.core import Spec
from spherenorm_experiments.core._equal_sources import EQUAL_SOURCES
from spherenorm_experiments.engine import RunFolder, Store, execute
from spherenorm_experiments.engine.door import Door
from spherenorm_experiments.files import write_file

FILE = Path(core.__file__).parent / "_equal_sources.py"

Pairs = Mapping[str, str]
"""New digests with the earlier ones of the same parts."""


def changed(store: Store) -> Iterator[tuple[RunFolder, Spec, Pairs]]:
    """The stored runs that differ from what would train now in digests of sources alone."""
    door = Door(store)
    for folder in store.folders():
        config = folder.config()
        if config is None or folder.summary() is None:
            continue
        spec = Spec.from_json(config)
        now = door.resolve(spec).config
        names = [name for name in now if name.endswith("_source")]
        pairs = {now[name]: config[name] for name in names if now[name] != config[name]}
        if EQUAL_SOURCES.keys() & set(pairs.values()):
            continue  # trained after them, before they were noted as equal to earlier ones
        left_out = {*names, "rows", "codes"}  # rows and codes are digests of recipes, too
        if pairs and all(now.get(k) == config.get(k) for k in {*now, *config} - left_out):
            yield folder, spec, pairs


def again(spec: Spec) -> Mapping[str, Any] | None:
    """The summary of a run that trains in a store of its own."""
    with tempfile.TemporaryDirectory() as root:
        run = Door(Store(root)).resolve(spec)
        execute(run)
        return run.folder.summary()


def main(root: str) -> int:
    """Train a run of each kind; note the digests if all are equal."""
    samples: dict[tuple[Any, ...], tuple[RunFolder, Spec, Pairs]] = {}
    found = sorted(changed(Store(root)), key=lambda each: len(each[0].rows))
    for folder, spec, pairs in found:
        if spec.regime.steps_of is None:  # a run with them needs another one of the store
            samples.setdefault((spec.task, spec.recipe, *pairs.items()), (folder, spec, pairs))
    shown: dict[str, str] = {}
    differ = []
    for folder, spec, pairs in samples.values():
        equal = again(spec) == folder.summary()
        print("equal " if equal else "DIFFERS", folder.name, flush=True)
        differ += [] if equal else [folder.name]
        for new, old in pairs.items():
            if shown.setdefault(new, old) != old:
                raise SystemExit(f"{folder.name}: the store has runs of two sources that are one")
    if differ:
        print(f"{len(differ)} of {len(samples)} runs differ: nothing is noted")
        return 1
    head, mark, rest = FILE.read_text().rpartition('"""')
    rows = "".join(f"{new}\n    {old}\n" for new, old in shown.items())
    write_file(FILE, f"{head}{rows}{mark}{rest}".encode())
    print(f"{len(samples)} runs are equal: {len(shown)} digests noted")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
