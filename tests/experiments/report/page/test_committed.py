"""The committed pages of results: one kind of p in their columns, and verdicts that it gives."""

import re
from pathlib import Path

import pytest
from scipy import stats

from spherenorm_experiments.verdict import P_HEADING, rules

RESULTS = Path(__file__).parents[4] / "experiments" / "results"
PAGES = sorted(RESULTS.glob("*-evidence.md"))
INTERVAL = re.compile(
    r"([+-]?[\d.e-]+) \[([+-]?[\d.e-]+), ([+-]?[\d.e-]+)\] (?:pp|perplexity|nats)"
)


OLDER = "These pages were written by the rules at their end, which have changed since"


def claims_on(page):
    """The rows of a page's tables of claims, by heading."""
    headings = None
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith("| claim |"):
            headings = cells
        elif headings and line.startswith("| ") and not line.startswith("| ---"):
            yield dict(zip(headings, [c.strip() for c in line[2:-2].split(" | ")], strict=True))
        elif not line.startswith("|"):
            headings = None


def test_there_are_pages_with_claims():
    assert sum(1 for page in PAGES for _ in claims_on(page)) > 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_p_is_the_one_that_its_verdict_rests_on(page):
    for claim in claims_on(page):
        p, verdict = claim[P_HEADING], claim["verdict"]
        if verdict in ("supported", "contradicted"):
            assert not p or float(p) <= 0.05, claim
        elif verdict == "inconclusive":
            assert not p or float(p) >= 0.05, claim
        else:  # not tested against its bound
            assert p == "", claim


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_p_of_a_difference_of_scores_is_that_of_the_pair_alone(page):
    """Student's p of the interval beside it, times 1.25 for looks at least."""
    for claim in claims_on(page):
        found = INTERVAL.fullmatch(claim["ours"])
        if found is None or not claim[P_HEADING] or "scores higher than" not in claim["says"]:
            continue
        mean, low, high = map(float, found.groups())
        count = int(claim["seeds"])
        half = (high - low) / 2 / stats.t.ppf(0.975, count - 1)
        alone = 2 * stats.t.sf(abs(mean) / half, count - 1)
        assert float(claim[P_HEADING]) >= min(1.0, 1.2 * alone), claim


def test_the_index_has_the_rules_of_this_code_or_says_that_its_verdicts_are_of_older_ones():
    text = (RESULTS / "index.md").read_text()
    has_rules = all(f"- {rule}\n" in text for rule in rules())
    assert has_rules != (OLDER in text)
