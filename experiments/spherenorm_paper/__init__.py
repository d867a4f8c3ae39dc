"""The AdamP paper: its tables and figures as studies, and its statements.

Each folder has the tasks, networks, data and studies of one experiment.
"""

ORDER = (
    *("f1", "f2", "f3", "t1", "t2", "t3", "f4", "t4", "t5", "t6", "c1"),
    *("d1", "d2", "d3", "weight-decay", "g1", "h6", "h7"),
)
"""The order of the studies on a page: the paper's figures and tables, then its appendix."""

OVERVIEW = "overview:overview"
"""The function of all studies together; see `spherenorm_experiments.report.Overview`."""
