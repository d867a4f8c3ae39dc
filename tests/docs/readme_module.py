"""Print the recipe of the README as the file `mymodule.py`, which its `compare` command names.

python -m tests.docs.readme_module > mymodule.py
"""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def read_module() -> str:
    """Return the imports of the README's first block, and its recipe without the optimizer."""
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    imports = re.findall(r"^import .*\n", blocks[0], re.MULTILINE)
    recipe = next(block for block in blocks if "@sn.recipe" in block)
    return "".join(imports) + recipe.partition("\n\n\noptimizer")[0] + "\n"


if __name__ == "__main__":
    print(read_module())
