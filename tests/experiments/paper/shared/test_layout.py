"""Layouts: what is missing is named, with the tree that is expected."""

from dataclasses import replace

import pytest

from spherenorm_experiments.paper.shared.layout import (
    FOLDER,
    Layout,
    checked,
    data_folder,
    layouts,
    use_folder,
)


def _count(folder):
    return {"images": len(list((folder / "images").iterdir()))}


TWO = Layout(
    "two", "Two Files", "two/\n  images/\n  list.txt", ("images", "list.txt"), {"images": 2},
    _count, "a test",
)  # fmt: skip


def test_the_first_missing_path_and_the_expected_tree_are_in_the_error(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    (tmp_path / "two" / "images").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"lacks list.txt; expected\ntwo/\n  images/"):
        TWO.folder()
    (tmp_path / "two" / "list.txt").touch()
    assert TWO.folder() == tmp_path / "two"


def test_of_two_names_one_is_enough(tmp_path):
    either = replace(TWO, paths=("list.txt or list.txt.gz",))
    with pytest.raises(ValueError, match=r"lacks list.txt or list.txt.gz; expected"):
        either.require(tmp_path)
    for name in ("list.txt.gz", "list.txt"):
        (tmp_path / name).touch()
        either.require(tmp_path)
        (tmp_path / name).unlink()


def test_counts_are_beside_those_that_are_expected(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "list.txt").touch()
    (tmp_path / "images" / "a.png").touch()
    assert checked(TWO, tmp_path) == {"images": (2, 1)}


def test_a_folder_must_be_given_and_be_there(tmp_path, monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(ValueError, match="Two Files lies on disk: give its folder by --data DIR"):
        data_folder("Two Files")
    with pytest.raises(ValueError, match="there is no such folder"):
        use_folder(tmp_path / "nowhere")


def test_every_layout_states_its_numbers_and_its_tree():
    for name, layout in layouts().items():
        assert name == layout.name
        assert layout.statistics
        assert layout.tree.strip().startswith(f"{name}/")
        assert layout.paths
