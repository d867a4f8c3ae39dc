"""Requests are read in the order in which they were asked, whatever happens to their files."""

import os

from experiments.campaign import Request, read_requests
from experiments.engine import Store
from experiments.studies import Plan


def test_the_order_of_requests_survives_a_copy(tmp_path):
    store, tiers = Store(tmp_path), ["full", "smoke", "small"]
    for tier in tiers:
        Request(["tiny"], Plan(tier)).save(store)
    for path in (tmp_path / "plans").iterdir():
        os.utime(path, (0, 0))
    assert [request.plan.tier for request in read_requests(store)[0]] == tiers
    Request(["tiny"], Plan("full")).save(store)  # asked again, it is the last one
    Request(["tiny"], Plan("full")).save(store)
    for path in (tmp_path / "plans").iterdir():
        os.utime(path, (0, 0))
    assert [request.plan.tier for request in read_requests(store)[0]] == ["smoke", "small", "full"]
