"""The generated pages of docs/ are what the code says."""

from __future__ import annotations

import yaml

from keylane.config.node import ProxyConfig
from tools import gen_docs


def test_generated_docs_are_up_to_date() -> None:
    """Configuration, metrics and protocol pages match the code."""
    assert gen_docs.main(["--check"]) == 0


def test_the_configuration_example_is_valid() -> None:
    """The YAML example of docs/configuration.md is a configuration."""
    text = gen_docs.configuration().split("```yaml\n")[1].split("```")[0]

    config = ProxyConfig.model_validate(yaml.safe_load(text))

    assert [rule.lanes for rule in config.lanes] == [16, 4]
