"""A store of version 0.1, as it lay on disk, becomes rows that count under `--accept-code`."""

import json

import numpy as np
import pytest
from commands import invoke
from running import run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.execute import execute_spec
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.store import Store


def document(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"content": content, "owner": "", "sha256": "0"}))


@pytest.fixture
def old(tmp_path):
    """A run on batches; and two points with two seeds that trained as one computation."""
    root, spec = tmp_path / "old", tiny_spec()
    data = run_of(spec).task.fingerprint()
    run = root / "runs" / "tiny-sgdp-0123456789abcdef"
    digests = {"format": 4, "data": data, "task_source": "1", "rule": "Chain()"}
    document(run / "config.json", {**spec.to_json(), "schedule": "cosine", **digests})
    document(run / "summary.json", {"diverged_at": None, "test": 0.5, "files": {"a": "b"}})
    document(run / "status.json", {"state": "finished", "seconds": 2.0})
    document(run / "origin.json", [{"torch": "2.1", "backend": "rule", "sources": "x"}])
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    batch = root / "runs" / "cosine-sgd-0123456789abcdef-01234567"
    content = {**_toy().to_json(), "hyper_parameters": {"lr": [0.1, 0.2]}, "seeds": [0, 1]}
    document(batch / "config.json", {**content, "seed": 0, "data": "none", "rows": list("abcd")})
    rows = {"diverged_at": [None, None, 3, None], "gap": [1.0, 2.0, None, 4.0]}
    document(batch / "summary.json", {"diverged_at": None, "steps": 5, "rows": rows})
    np.savez(batch / "arrays.npz", norm=np.arange(12.0).reshape(4, 3))
    document(root / "runs" / "broken" / "config.json", {})
    plan = {"tier": "smoke", "seeds": None, "optimizers": None, "search": {}}
    document(root / "plans" / "a.json", {"studies": ["t1"], "plan": plan, "number": 1, "ended": 1})
    return root


def _toy(lr=0.1, seed=0):
    return Spec("cosine", "sgd", {"lr": lr}, epochs=5, probes=(), seed=seed)


def test_runs_of_an_earlier_store_are_rows_and_count_only_if_their_code_is_accepted(old, tmp_path):
    new = tmp_path / "new"
    result = invoke("convert", old, "--out", new)
    assert (result.exit_code, "5 runs" in result.output) == (0, True)
    assert "broken" in result.stderr
    store, spec = Store(new), tiny_spec()
    assert len(store.rows()) == 5
    row = store.newest([spec])[next(iter(store.newest([spec])))]
    assert (row.summary["test"], row.about["executor"], row.about["torch"]) == (0.5, "rule", "2.1")
    assert row.records() == [{"step": 1, "loss": 2.0}]
    toys = store.newest([_toy(lr, seed) for lr in (0.1, 0.2) for seed in (0, 1)]).values()
    assert [toy.summary["gap"] for toy in toys] == [1.0, 2.0, None, 4.0]
    assert [toy.arrays["norm"].tolist() for toy in toys][2] == [6.0, 7.0, 8.0]
    assert execute_spec(spec, new, accept_code=True).cached
    assert not execute_spec(spec, new).cached
