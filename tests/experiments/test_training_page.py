"""The page about training says that it is little work; `tests/test_docs.py` runs its code."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_an_own_model_data_set_and_recipe_take_40_lines():
    block = re.search(r"^```python\n# waves.py\n(.*?)^```", PAGE.read_text(), re.M | re.S)[1]
    lines = [line for line in block.splitlines() if line.strip()]
    assert len(lines) <= 40
    assert {"Dataset", "Task", "@sn.recipe"} <= set(re.findall(r"Dataset|Task|@sn\.recipe", block))
