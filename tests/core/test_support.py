"""Unknown names, objects by name, optional packages, and files that are written whole."""

import sys

import pytest

from spherenorm.support import (
    MissingExtraError,
    atomic_write,
    describe_with_user_line,
    did_you_mean,
    look_up,
    one_line,
    require_module,
    unknown_name,
)
from tests.harness import refuses


def test_the_nearest_names_or_all():
    known = ["sgd", "adam", "sgdp"]
    assert did_you_mean("sgpd", known) == "did you mean sgd or sgdp?"
    assert did_you_mean("lion", known) == "known: adam, sgd, sgdp"
    error = str(unknown_name("recipe", "lion", known, "(or your own)"))
    assert all(each in error for each in ("recipe", "'lion'", "(or your own)"))


def test_objects_by_name(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "looked_up.py").write_text(
        "from os import getcwd\nclass Outer:\n    class Inner: pass\nclass Other: pass\nvalue = 1\n"
    )
    (tmp_path / "looked_up_broken.py").write_text("import looked_up_nowhere\n")

    def find(name):
        return look_up("thing", name, "class", lambda found: isinstance(found, type))

    assert find("looked_up:Outer.Inner").__qualname__ == "Outer.Inner"
    for name, named in (
        ("looked_up:Othre", ("looked_up", "class", "Othre", "Other")),
        ("looked_up:Zzz", ("Zzz", "Other", "Outer")),
        ("looked_up:value", ("class", "value")),
        ("looked_up_away:Other", ("thing", "looked_up_away:Other", "looked_up_away")),
        ("looked_up", ("thing", "looked_up", "module:class")),
    ):
        with refuses(*named):
            find(name)
    with refuses("looked_up_nowhere", by=ModuleNotFoundError):
        find("looked_up_broken:Other")


def test_a_missing_package_is_both_kinds_of_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "json", None)
    for kind in (ImportError, ValueError, MissingExtraError):
        with refuses("lists need json", "(import of json", "pip install it", by=kind):
            require_module("json", "lists need json ({error}): pip install it")
    monkeypatch.undo()
    assert require_module("json", "never").dumps([]) == "[]"


def test_an_error_in_one_line_and_where_the_user_raised_it(tmp_path):
    path = tmp_path / "users_own.py"
    path.write_text("def fails():\n    raise KeyError('lr')\n")
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(KeyError) as raised:
        names["fails"]()
    assert one_line(raised.value) == "KeyError: 'lr'"
    assert describe_with_user_line(raised.value) == "KeyError: 'lr' (users_own.py, line 2)"
    assert one_line(ValueError("first\nsecond")) == "first"
    assert one_line(ValueError()) == "ValueError: "
    assert describe_with_user_line(KeyError("lr")) == "KeyError: 'lr'"


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    atomic_write(path, "old ∞")
    assert path.read_text(encoding="utf-8") == "old ∞"

    def full(_):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with refuses("no space left", by=OSError):
            atomic_write(path, b"new")
    assert path.read_text(encoding="utf-8") == "old ∞"
    assert list(tmp_path.iterdir()) == [path]
    atomic_write(path, b"new")
    assert path.read_bytes() == b"new"
