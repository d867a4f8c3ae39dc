"""WikiText-103's vocabulary, and the windows on a text."""

import pytest
import torch

from spherenorm_experiments.paper.language.texts import (
    Windows,
    corpus,
)
from spherenorm_experiments.paper.shared.layout import FOLDER

LINES = " \n = Title = \n \n the cat and the dog \n"


def test_tokens_are_numbered_by_frequency_and_lines_end(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    (tmp_path / "wikitext-103").mkdir()
    for part, text in (("train", LINES), ("valid", " the dog \n"), ("test", " cat \n")):
        (tmp_path / "wikitext-103" / f"wiki.{part}.tokens").write_text(text)
    count, tokens = corpus()
    assert count == 7  # <eos>, the, =, Title, cat, and, dog; ties in the order of the text
    assert tokens["train"].tolist() == [0, 1, 3, 1, 0, 0, 2, 4, 5, 2, 6, 0]
    assert tokens["valid"].tolist() == [2, 6, 0]
    assert tokens["train"].dtype == torch.int32


@pytest.mark.parametrize("count", [2, 9, 10, 11, 12])
def test_windows_score_each_token_once_after_those_before_it(count):
    tokens = torch.arange(100, 100 + count, dtype=torch.int32)
    windows = Windows(tokens, 4, 3, complete=False)
    scored = []
    for (window,) in (windows[index] for index in range(len(windows))):
        assert len(window) == 4 + 3 + 1
        for place in range(5, 8):
            if window[place] >= 0:
                target = int(window[place])
                before = [0] * 8 + list(range(100, target))
                assert window[:place].tolist() == before[-place:]
                scored.append(target)
    assert scored == list(range(101, 100 + count))
