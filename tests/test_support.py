"""Unknown names, objects by name, optional packages, and files that are written whole."""

import sys

import pytest

from spherenorm.support import (
    MissingExtraError,
    did_you_mean,
    look_up,
    require_module,
    time_in_turns,
    unknown_name,
    write_whole,
)


def test_the_nearest_names_or_all():
    known = ["adam", "sgd", "sgdp"]
    assert did_you_mean("sgpd", known) == "did you mean sgd or sgdp?"
    assert did_you_mean("lion", known) == "known: adam, sgd, sgdp"
    assert did_you_mean("lion", known, "it has none") == "it has none"
    assert str(unknown_name("recipe", "lion", known, "(or your own)")) == (
        "no recipe is named 'lion'; known: adam, sgd, sgdp (or your own)"
    )


def test_objects_by_name(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "looked_up.py").write_text(
        "from os import getcwd\nclass Outer:\n    class Inner: pass\nclass Other: pass\nvalue = 1\n"
    )
    (tmp_path / "looked_up_broken.py").write_text("import looked_up_nowhere\n")

    def find(name):
        return look_up("thing", name, "class", lambda found: isinstance(found, type))

    assert find("looked_up:Outer.Inner").__qualname__ == "Outer.Inner"
    for name, message in (
        ("looked_up:Othre", r"module 'looked_up' has no class 'Othre'; did you mean Other or"),
        ("looked_up:value", "has no class 'value'"),
        ("looked_up_away:Other", "thing 'looked_up_away:Other': there is no module"),
    ):
        with pytest.raises(ValueError, match=message):
            find(name)
    with pytest.raises(ModuleNotFoundError, match="looked_up_nowhere"):
        find("looked_up_broken:Other")


def test_a_missing_package_is_both_kinds_of_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "json", None)
    with pytest.raises(
        MissingExtraError, match=r"lists need json \(.*\): pip install it"
    ) as raised:
        require_module("json", "lists need json ({error}): pip install it")
    assert isinstance(raised.value, ImportError)
    assert isinstance(raised.value, ValueError)


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, "old ∞")
    assert path.read_text(encoding="utf-8") == "old ∞"

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_whole(path, b"new")
    assert path.read_text(encoding="utf-8") == "old ∞"
    assert list(tmp_path.iterdir()) == [path]


def test_actions_take_turns_and_only_their_own_time_counts():
    now, called = [0.0], []

    def action(name, seconds):
        def run():
            called.append(name)
            now[0] += seconds

        return run

    actions = {"a": action("a", 1.0), "b": action("b", 3.0)}
    prepare, clock = action("prepared", 10.0), lambda: now[0]
    times = time_in_turns(actions, 2, calls=2, warm_up=1, prepare=prepare, clock=clock)
    assert times == {"a": [1.0, 1.0], "b": [3.0, 3.0]}
    turns = "".join(name for name in called if name != "prepared")
    assert sorted([turns[:4], turns[4:8]]) == ["aabb", "bbaa"]
    assert (len(turns), called.count("prepared")) == (12, 6)
