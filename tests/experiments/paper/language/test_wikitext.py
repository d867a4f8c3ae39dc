"""WikiText-103's layout, its vocabulary, and the windows on a text."""

import pytest
import torch

from spherenorm_experiments.paper.language import standard_library
from spherenorm_experiments.paper.language.wikitext import (
    LAYOUT,
    Windows,
    corpus,
    encode,
    vocabulary,
)
from spherenorm_experiments.paper.shared.layout import checked

LINES = " \n = Title = \n \n the cat and the dog \n"


@pytest.fixture
def folder(tmp_path):
    """The official layout, with few words."""
    for part, text in (("train", LINES), ("valid", " the dog \n"), ("test", " cat \n")):
        (tmp_path / f"wiki.{part}.tokens").write_text(text)
    return tmp_path


def test_tokens_are_numbered_by_frequency_and_lines_end(folder):
    count, tokens = corpus(folder)
    assert count == 7  # <eos>, the, =, Title, cat, and, dog; ties in the order of the text
    assert tokens["train"].tolist() == [0, 1, 3, 1, 0, 0, 2, 4, 5, 2, 6, 0]
    assert tokens["valid"].tolist() == [2, 6, 0]
    assert tokens["train"].dtype == torch.int32


def test_counts_are_those_of_the_tokens(folder):
    count, tokens = corpus(folder)
    found = {name: number for name, (_, number) in checked(LAYOUT, folder).items()}
    expected = {f"{part} tokens": len(tokens[part]) for part in tokens}
    assert found == {"vocabulary": count, **expected}


def test_a_missing_part_is_named_with_the_tree(folder):
    (folder / "wiki.valid.tokens").unlink()
    with pytest.raises(ValueError, match=r"lacks wiki.valid.tokens; expected\nwikitext-103/"):
        LAYOUT.require(folder)


def test_unknown_words_have_their_token_or_are_an_error():
    numbers = vocabulary([["b", "a", "b"]], ("<eos>", "<unk>"))
    assert encode([["a", "z"]], numbers).tolist() == [3, 1, 0]
    with pytest.raises(ValueError, match="the word 'z' is not in the vocabulary"):
        encode([["z"]], vocabulary([["a"]]))


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


def test_a_last_short_segment_is_left_out_of_training():
    tokens = torch.arange(11, dtype=torch.int32)
    windows = Windows(tokens, 2, 3, complete=True)
    assert len(windows) == 3
    assert min(int(window.min()) for (window,) in (windows[i] for i in range(3))) >= 0
    with pytest.raises(ValueError, match="segments of 20 need a longer text, got 11 tokens"):
        Windows(tokens, 2, 20, complete=True)


def test_the_librarys_source_comes_back_from_its_tokens():
    count, tokens = standard_library.source_corpus(3000, 500)
    lines = [line for m in standard_library.MODULES["train"] for line in standard_library._lines(m)]
    numbers = vocabulary(lines, ("<eos>", "<unk>"))
    symbols = {number: word for word, number in numbers.items()} | {0: "\n"}
    assert count == len(numbers)
    assert {part: len(x) for part, x in tokens.items()} == {
        "train": 3000,
        "valid": 500,
        "test": 500,
    }
    text = "".join(symbols[token] for token in tokens["train"].tolist()[:1000])
    assert text == "\n".join([*standard_library._lines("argparse")])[:1000]
