"""`show` and `gc`: single runs of a store, and those that nobody asks for."""

import json

import pytest
from commands import invoke
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.engine import Store, execute
from spherenorm_experiments.engine.door import resolve


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


@pytest.mark.parametrize(("name", "said"), [("nothing", "nothing"), ("sp", "runs begin with 'sp'")])
def test_a_name_of_no_run_or_of_several_is_one_line(ran, name, said):
    result = invoke("show", name, "--out", ran)
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert said in result.output


def test_gc_removes_what_no_request_asks_for_and_what_does_not_go_on(ran):
    store = Store(ran)
    asked = {folder.name for folder in store.folders()}
    folder = stray(ran, seed=7)
    assert folder.name in invoke("gc", "--out", ran).output  # nobody answers
    with folder.lock():
        invoke("gc", "--out", ran, "--yes")
    assert folder.summary() is not None
    gone = json.loads(invoke("gc", "--out", ran, "--json", "--yes").stdout)
    assert gone["removed"] == [folder.name]
    assert {each.name for each in store.folders()} == asked
