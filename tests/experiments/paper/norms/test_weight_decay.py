"""Figures F.1 to F.6."""

from running import run_study


def test_each_figure_of_appendix_f_has_norm_and_step(store):
    study, _, results = run_study("weight-decay", store)
    pictures = study.pictures(results)
    for figure in ("F.1", "F.2", "F.3", "F.4", "F.5", "F.6"):
        shown = [p.caption for p in pictures if p.caption.startswith(f"Figure {figure}")]
        assert [text.rpartition(": ")[2] for text in shown] == ["norm.", "effective step size."]
