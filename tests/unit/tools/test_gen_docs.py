"""The generated pages of docs/ are what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from keylane.config.node import ProxyConfig
from tools import gen_docs, gen_python


def test_generated_docs_are_up_to_date() -> None:
    """Configuration, metrics, protocol and the parts of the Python page match the code."""
    assert gen_docs.main(["--check"]) == 0


def test_the_configuration_example_is_valid() -> None:
    """The YAML example of docs/configuration.md is a configuration."""
    text = gen_docs.configuration().split("```yaml\n")[1].split("```")[0]

    config = ProxyConfig.model_validate(yaml.safe_load(text))

    assert [rule.lanes for rule in config.lanes] == [16, 4]


def test_a_part_of_a_page_is_filled_in(tmp_path: Path) -> None:
    """A program stands between its two lines, whatever was there; the rest of the page stays."""
    (tmp_path / "loop.py").write_text("work()\n")
    page = "Before\n<!-- begin: loop.py -->\nold\n<!-- end: loop.py -->\nBehind\n"

    filled = gen_python.python_page(page, tmp_path)

    assert filled == page.replace("old\n", "```python\nwork()\n```\n")
    assert gen_python.python_page(filled, tmp_path) == filled


def test_a_part_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    """A program that was renamed does not stay on the page as it was."""
    page = "<!-- begin: gone.py -->\n<!-- end: gone.py -->\n"

    with pytest.raises(KeyError, match=r"gone\.py"):
        gen_python.python_page(page, tmp_path)
