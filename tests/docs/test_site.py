"""The generated pages of the site: every public name is documented in one place."""

import json
import re

import pytest

import spherenorm as sn
from docs.site import front, gallery, notebooks, pictures, reference, zoo
from docs.site.docstring import LINE_LENGTH, cell, escaped, to_markdown
from spherenorm import rules


@pytest.fixture(scope="module")
def pages():
    return reference.pages()


def test_every_public_name_has_a_docstring_and_one_place(pages):
    text = "".join(pages.values())
    assert " at 0x" not in text
    anchors = re.findall(r"^\((.+)\)=$", text, re.MULTILINE)
    assert len(set(map(str.lower, anchors))) == len(anchors)  # an anchor has no case
    for name, thing in reference.public().items():
        home = reference._home(name, thing) or name
        assert f"({reference.target(home, thing)})=" in text, name
    for anchor in re.findall(r"\]\(#(.+?)\)", text):
        assert anchor in anchors


def test_signatures_and_formulas_fit_beside_the_contents(pages):
    blocks = re.findall(r"```(?:python|text)\n(.*?)```", "\n".join(pages.values()), re.DOTALL)
    wide = {line for block in blocks for line in block.splitlines() if len(line) > LINE_LENGTH}
    assert not wide
    signature = "(params, lr=0.001, betas=(0.9, 0.999), *, maximize=False, backend='auto')"
    lines = reference._wrapped("class Optimizer" + "X" * 30, signature).splitlines()
    assert max(map(len, lines)) <= LINE_LENGTH
    assert "".join(line.strip() + " " * line.endswith(",") for line in lines[1:-1]).strip() == (
        signature[1:-1] + ","
    )


def test_a_name_without_a_docstring_is_refused(monkeypatch):
    def bare():
        pass

    monkeypatch.setattr(sn.metrics, "__all__", [*sn.metrics.__all__, "bare"])
    monkeypatch.setattr(sn.metrics, "bare", bare, raising=False)
    with pytest.raises(reference.UndocumentedError, match=r"spherenorm\.metrics\.bare"):
        reference.pages()


def test_the_table_of_rules_has_every_rule_with_its_arguments_and_state(pages):
    table = gallery._rules()
    rows = re.findall(r"^\| \[([\w<>]+)\]\(.*?\) \| (.*)$", table, re.MULTILINE)
    rows = {name.replace("<wbr>", ""): text for name, text in rows}
    public = [getattr(rules, name) for name in rules.__all__]
    assert rows.keys() == {
        cls.__name__ for cls in public if isinstance(cls, type) and issubclass(cls, sn.Rule)
    }
    assert rows["StepSize"].startswith("Scale the direction by the learning rate")
    assert rows["StepSize"].endswith("<br>arguments: `lr` |")
    assert "arguments: `beta, dampening=0.0, nesterov=False" in rows["HeavyBall"]
    assert rows["HeavyBall"].endswith("<br>states: `momentum` |")
    assert r"\|d\|" in rows["UnitClip"]
    text = "".join(pages.values())
    for anchor in re.findall(r"\]\(#(.+?)\)", table):
        assert f"({anchor})=" in text


def test_the_gallery_lists_every_recipe_of_the_library():
    recipes = {*sn.recipes.__all__, *sn.zoo.__all__} - {"rules"}
    assert recipes <= set(gallery.library_recipes())
    index = gallery._index(gallery.library_recipes(), {"sgdp": gallery._thumbnail("sgdp")})
    assert all(f"[{name}]({name}.md)" in index for name in recipes)
    assert index.count("<svg") == 1
    assert all(f"## {title}" in index for title in gallery.FAMILIES.values())


def test_the_table_of_the_zoo_is_up_to_date():
    page = zoo.PAGE.read_text()
    assert zoo.with_table(page) == page, "python -m docs.site.zoo"
    assert all(f"| `{name}` |" in page for name in {*sn.zoo.__all__} - {"rules"})


def test_a_picture_shows_the_norms_of_its_run():
    """The projection keeps the norm on digits; SGD's, with momentum, grows."""
    projected, unprojected = (pictures.train(name).norm for name in ("sgdp", "sgd"))
    assert max(projected) < unprojected[-1]
    text = gallery._picture("sgdp")
    assert text.count("<svg") == 2
    assert f"{max(unprojected):.3g}" in text  # a label of the axis that both share


def test_a_page_of_the_gallery_has_formula_law_and_curves():
    page = gallery._page("sgdp")
    assert page.startswith("# sgdp\n\n```python\noptimizer = sn.optim.SGDP(model.parameters(), lr=")
    assert "def sgdp(" in page
    assert "return chain(" in page
    assert page.count('"""') == 0
    assert "<w_t, s_t> = 0" in page
    assert page.count("<svg") == 2


def test_the_front_page_has_the_law_of_its_recipe():
    parts = front.pages()
    assert "RadialProjection()" in parts["front/recipe.py"]
    assert "<w_t, s_t> = 0" in parts["front/law.txt"]
    assert "<b>19 : 1</b>" in parts["front/number.html"]  # (1 + 0.9) / (1 - 0.9)


@pytest.mark.long  # `make docs` runs all three
def test_a_notebook_runs_and_keeps_small_outputs():
    assert {path.stem for path in notebooks.SCRIPTS} == {"audit", "compare", "compose"}
    (path,) = (path for path in notebooks.SCRIPTS if path.stem == "compose")
    parts = notebooks.pages(path)
    notebook = json.loads(parts["notebooks/compose.ipynb"])
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)
    assert "<w_t, s_t> = 0" in parts["notebooks/compose.md"]
    assert len(parts["notebooks/compose.ipynb"]) < 200_000


def documented():
    """A *sum* of `a*b` and <w, g>, with |w| > 0:

        s = a * b

    Args:
        a: of any sign; a_b too.
        b, c: in [0, 1).

    Example:
        >>> 1 + 1
        2

    Source: nobody, *ours*.
    """


def test_docstrings_as_markdown():
    text = to_markdown(documented)
    assert r"A *sum* of `a*b` and \<w, g>, with |w| > 0:" in text
    assert "```text\ns = a * b\n```" in text
    assert "- `a`: of any sign; a_b too." in text
    assert r"- `b, c`: in \[0, 1)." in text
    assert "```pycon\n>>> 1 + 1\n2\n```" in text
    assert "*Source:* nobody" in text
    assert escaped("2*lr*d") == r"2\*lr\*d"
    assert cell("|w|") == r"\|w\|"
