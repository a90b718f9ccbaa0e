"""Make the parts of a package that pyproject.toml cannot say: page of an index, documentation.

README.md has links to files beside it, which an index does not have. Here they become addresses
of the project (pyproject.toml, [project.urls]): pages of `docs/` and their pictures on the site of
the documentation, all other files in the source.

A wheel also holds the site of docs/, for `keylane docs`. Only a tree with docs/ asks for its
builder (an image has none), and an editable install does without.
"""

import importlib.util
import posixpath
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
HAS_DOCS = (HERE / "docs" / "site").is_dir()
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")


def address_of(path: str, urls: dict[str, str]) -> str:
    """Return where a file of the tree is published."""
    folder, name = posixpath.split(posixpath.normpath(path))
    below = folder.removeprefix("docs").strip("/")
    if path.startswith("docs/") and (name.endswith(".md") or below.startswith("images")):
        name = "index.md" if name == "README.md" else name  # as the site's builder has it
        page = re.sub(r"\.md$", ".html", posixpath.join(below, name))
        return f"{urls['Documentation']}/{page}"
    return f"{urls['Source']}/blob/main/{posixpath.normpath(path)}"


def page_of(readme: str, urls: dict[str, str]) -> str:
    """Return a readme for a package index: every link is an absolute address."""
    return LINK.sub(lambda link: address_of(link[1], urls) + (link[2] or ""), readme)


class BuildWithManual(build_py):
    """Copies the package, and builds the site of docs/ beside it."""

    def run(self) -> None:
        """Build all. Raises: CalledProcessError, a page is broken."""
        super().run()
        if self.editable_mode or not HAS_DOCS:
            return
        if importlib.util.find_spec("zensical") is None:
            self.warn("zensical is not installed: a package without `keylane docs`")
            return
        folder = Path(self.build_lib).resolve() / "keylane" / "manual"
        command = [sys.executable, "-m", "tools.doc_site", str(folder)]
        subprocess.run(command, cwd=HERE, check=True)


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=page_of((HERE / "README.md").read_text("utf-8"), project["urls"]),
        long_description_content_type="text/markdown",
        cmdclass={"build_py": BuildWithManual},
        setup_requires=project["optional-dependencies"]["docs"] if HAS_DOCS else [],
    )
