"""`show` and `gc`: single runs of a store, and those that nobody asks for."""

import json

import pytest
from commands import invoke, run_tiny
from running import folder_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine import Store, execute, find_rows
from spherenorm_experiments.engine.door import resolve
from spherenorm_experiments.study import read_requests


def stray(root, **spec):
    """A finished run that no request asks for."""
    run = resolve(tiny_spec(**spec), Store(root))
    execute(run)
    return run.folder


def test_show_has_what_the_store_has(tmp_path):
    folder = stray(tmp_path)
    shown = json.loads(invoke("show", folder.name, "--out", tmp_path, "--json").stdout)
    assert (shown["state"], shown["run"]) == ("finished", folder.name)
    assert shown["summary"]["test"] == folder.summary()["test"]
    assert shown["settings"]["hyper_parameters.lr"] == 0.1
    text = invoke("show", folder.name.rpartition("-")[2][:9], "--out", tmp_path)
    assert text.exit_code == 0
    assert f"{folder.summary()['norm_last']:.7g}" in text.stdout


def test_show_takes_the_name_of_a_run_that_trained_with_others(tmp_path):
    spec = Spec("cosine", "sgd", {"lr": [0.1, 0.2]}, seeds=(0, 1), epochs=3, probes=())
    run = resolve(spec, Store(tmp_path))
    execute(run)
    rows = find_rows(run.store, run.rows)
    for name in (run.rows[2], run.rows[2].rpartition("/")[2][:12]):
        shown = json.loads(invoke("show", name, "--out", tmp_path, "--json").stdout)
        assert (shown["run"], shown["state"]) == (run.rows[2], "finished")
        assert (shown["settings"]["hyper_parameters.lr"], shown["settings"]["seed"]) == (0.2, 0)
        assert shown["summary"] == rows[run.rows[2]].summary
    together = json.loads(invoke("show", run.id, "--out", tmp_path, "--json").stdout)
    assert together["settings"]["hyper_parameters.lr"] == [0.1, 0.2]


@pytest.mark.parametrize(
    ("name", "says"), [("nothing", "begins with 'nothing'"), ("sp", "2 runs begin with 'sp'")]
)
def test_a_name_of_no_run_or_of_several_is_one_line(tmp_path, name, says):
    for seed in (1, 2):
        stray(tmp_path, seed=seed)
    result = invoke("show", name, "--out", tmp_path)
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert says in result.output


def test_gc_removes_what_no_request_asks_for(ran):
    store = Store(ran)
    asked = {folder.name for folder in store.folders()}
    name = stray(ran, seed=7).name
    refused = invoke("gc", "--out", ran)  # nobody answers
    assert name in refused.output
    assert {folder.name for folder in store.folders()} == {*asked, name}
    told = json.loads(invoke("gc", "--out", ran, "--json").stdout)
    assert (list(told["unasked"]), told["removed"]) == ([name], [])
    gone = json.loads(invoke("gc", "--out", ran, "--json", "--yes").stdout)
    assert gone["removed"] == [name]
    assert {folder.name for folder in store.folders()} == asked
    assert sorted(path.name for path in ran.iterdir()) == ["plans", "runs", "sources"]
    assert "0 runs now" in run_tiny(ran).output


def test_gc_leaves_a_run_that_goes_on(ran):
    folder = stray(ran, seed=7)
    with folder.lock():
        assert invoke("gc", "--out", ran, "--yes").exit_code == 0
        assert folder.summary() is not None
    assert invoke("gc", "--out", ran, "--yes").exit_code == 0
    assert folder.summary() is None


def test_gc_refuses_while_a_request_cannot_be_read(ran):
    folder = folder_of(tiny_spec(seed=7), ran)
    folder.write_status("finished")
    (path,) = (ran / "plans").iterdir()
    path.write_text(path.read_text().replace('"smoke"', '"smale"'))
    with pytest.warns(UserWarning, match="does not count"):
        result = invoke("gc", "--out", ran, "--yes")
    assert result.exit_code == 1
    assert folder.status()
    assert read_requests(Store(ran))[1]
