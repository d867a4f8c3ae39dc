"""The 9-Class ImageNet: a miniature of the official folders, and what is read from it."""

from miniatures import write_nine_class

from spherenorm_experiments.paper.debiasing.nine_class import SYNSETS, nine_class
from spherenorm_experiments.paper.shared.layout import FOLDER

EACH = 3
"""Training images of each synset of the miniature."""


def test_every_file_is_in_the_part_that_it_belongs_to(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    write_nine_class(tmp_path, EACH)
    train, validation, test = nine_class(6)
    assert len(train) == 42 * (EACH - 1)
    assert len(validation) == 42  # one of three
    assert not set(train.files) & set(validation.files)
    assert len(test) == 9 + 9
    items = [test[index] for index in range(len(test))]
    assert [part for _, _, part, _ in items] == [0] * 9 + [1] * 9
    assert [label for _, label, *_ in items] == [*range(9), *sorted(range(9), key=_synset_of)]
    assert [clusters.tolist() for *_, clusters in items[:9]] == [[k, 0, 0] for k in range(9)]
    assert items[0][0].shape == (3, 6, 6)
    assert {part for _, _, part, _ in (validation[k] for k in (0, 41))} == {2}


def _synset_of(label):
    return list(SYNSETS.values())[label].split()[0]
