"""The study of the detector."""

from running import run_study


def test_the_detector_shows_both_kinds_of_errors(store):
    study, _, results = run_study("detector", store)
    for picture, what, kinds in zip(
        study.pictures(results), ("False", "Missed"), (3, 2), strict=True
    ):  # the transformer has none to miss
        assert picture.caption.startswith(what)
        assert len(picture.figure.data) == 2 * kinds
