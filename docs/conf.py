"""The site: `make docs` builds it into build/docs, offline and without warnings."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "theory"), str(ROOT / "experiments")]  # with `docs.site`
os.environ.setdefault("OMP_NUM_THREADS", "1")

project = "spherenorm"
project_copyright = "the spherenorm developers, MIT license"

extensions = ["myst_parser", "docs.site.extension"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["site"]
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header", "toc.empty_glob"]  # of included pages; of pages yet to come

html_theme = "furo"
html_title = "spherenorm"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False
pygments_style, pygments_dark_style = "friendly", "github-dark"
