"""The paper's tables and figures, each with its set-ups: a table for the documentation.

    python -m spherenorm_paper.artifacts

prints what stands in `docs/benchmarks.md`; a test holds the two equal.
"""

from __future__ import annotations

from spherenorm_experiments.comparison import Comparison, find_study
from spherenorm_experiments.lookup import registered
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Runs
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Row, Table, to_markdown

ARTIFACTS = (
    ("Figure 1 and its video, norms of Appendix B", "f1"),
    ("Figure 2, the sketch of Section 2.2", "f2"),
    ("Figures 3, H.1, G.1, G.2", "f3"),
    ("Table 1", "t1"),
    ("Tables 2, H.1", "t2"),
    ("Table 3", "t3"),
    ("Figure 4, Table E.2", "f4"),
    ("Tables 4, H.2", "t4"),
    ("Tables 5, H.3", "t5"),
    ("Tables 6, H.4", "t6"),
    ("Table C.1 (B.1 in the source)", "c1"),
    ("Tables D.1, H.5", "d1"),
    ("Table D.2", "d2"),
    ("Table D.3", "d3"),
    ("Figures F.1 to F.6", "weight-decay"),
    ("Table G.1", "g1"),
    ("Table H.6", "h6"),
    ("Table H.7", "h7"),
)
"""Every one with results, and its study."""


def artifacts_table() -> Table:
    """Each artifact: its set-up with `--data`, the embedded one, where it is, its departures."""
    rows: list[Row] = [(name, *_set_ups(find_study(study))) for name, study in ARTIFACTS]
    columns = ("artifact", "with `--data`", "embedded", "where", "departures")
    return Table("The paper's tables and figures", columns, rows)


def _set_ups(study: Study) -> tuple[str, str, str, str]:
    trials = {real: study.trials(Plan("small", real=real), Runs()) for real in (False, True)}
    embedded = f"{len(trials[False])} runs" if len(trials[False]) > 1 else "1 run"
    with_data = (
        f"{len(trials[True])} runs: {_paper_networks(study)}"
        if study.uses_paper_data
        else "the same"
    )
    n_with_data = sum("--data" in setting for setting, *_ in study.departures)
    departures = f"{len(study.departures)}, {n_with_data} with `--data`"
    return with_data, embedded, f"`{study.name}`, {_file(study)}", departures


def _paper_networks(study: Study) -> str:
    """The networks and data of the paper, each once."""
    assert isinstance(study, Comparison)
    named = []
    for condition in study.conditions:
        if condition.real is not None:
            options = condition.real.options
            network = f"{options.get('network', condition.task)}, {options.get('data_set', '')}"
            named.append(condition.paper_setup or network)
    return "; ".join(dict.fromkeys(named))


def _file(study: Study) -> str:
    """The file with its table, in the folder `paper`."""
    module = registered("STUDIES")[study.name].partition(":")[0]
    return "/".join(module.split(".")[-2:]) + ".py"


if __name__ == "__main__":
    print(to_markdown(artifacts_table()))
