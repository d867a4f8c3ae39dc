"""Requests are read in the order in which they were asked, whatever happens to their files."""

from running import run_study

from spherenorm_experiments.analysis import Arm, Trial
from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine import Store
from spherenorm_experiments.report.page import sections
from spherenorm_experiments.study import Plan, Request, Study, read_requests

STUDY = "spherenorm_tiny:TinyStudy"


def test_looks_are_in_the_order_in_which_requests_first_ended(tmp_path):
    """To repeat the first request after the second does not make the second look a first one."""
    arm = Arm("SGD", "sgd")

    def sizes(name, *asked):
        """The seeds that could be looked at, after requests of so many of them."""
        store = Store(tmp_path / name)
        for seed in range(12):
            folder = store.folder(f"run-{seed}")
            folder.write_config(Spec("tiny", "sgd", seed=seed).to_json())
            folder.finish({"diverged_at": None, "test": 1.0}, [])
        for count, ended in asked:
            runs = [(arm, f"run-{seed}") for seed in range(count)]
            plan = Plan("small", tuple(range(count)))
            Request([STUDY], plan, {STUDY: runs}).save(store, ended=ended)
        (section,) = sections(store, read_requests(store)[0])
        return [len(seeds) for seeds in section.results.arm(arm).values("test").looks]

    assert sizes("grown", (6, True), (12, True)) == [6, 12]
    assert sizes("repeated", (6, True), (12, True), (6, False), (6, True)) == [6, 12]
    assert sizes("killed", (12, False), (6, True), (12, True)) == [6, 12]
    assert sizes("whole", (12, True), (6, True)) == [12, 12]  # there were twelve from the start
    assert sizes("whole again", (12, True), (6, True), (12, True)) == [12, 12]


class Growing(Study):
    """One trial of a pure task, whose list of rates is longer once its first runs have ended."""

    name = "growing"

    def trials(self, plan, results):
        rates = [0.01, 0.02, 0.04][: 3 if len(results) >= 2 else 2]
        spec = Spec("cosine", "sgd", {"lr": rates}, epochs=1, seeds=(0,))
        return [Trial(Arm("SGD", "sgd"), spec)]


def test_a_trial_that_gets_longer_has_all_of_its_runs(tmp_path):
    """The points of a pure task are one trial: a grid that grows makes no trial more."""
    _, planned, results = run_study(Growing(), Store(tmp_path))
    assert len(planned) == 1
    assert sorted(item.spec.hyper_parameters["lr"] for item in results) == [0.01, 0.02, 0.04]
