"""The command line: `keylane proxy`, `keylane kafka`, `keylane demo` and the others.

Exit codes: 0 done, 1 failed (one line on stderr), 2 bad arguments or configuration (one line),
130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, cast

import click

from keylane import __version__
from keylane.cli.wording import explain_os_error, explain_usage
from keylane.errors import ConfigInvalid, KeylaneError
from keylane.usage import HELP_NAMES

PROGRAM: Final = "keylane"
FAILED: Final = 1
BAD_ARGUMENTS: Final = 2
INTERRUPTED: Final = 130
"""As a shell reports it: 128 + SIGINT."""
COMMANDS: Final[Mapping[str, str]] = MappingProxyType({
    "proxy": "keylane.cli.proxy:proxy_command",
    "kafka": "keylane.embedded.cli:kafka_command",
    "demo": "keylane.demo.cli:demo_command",
    "groups": "keylane.cli.lists:groups_command",
    "describe": "keylane.cli.describe:describe_command",
    "topics": "keylane.cli.lists:topics_command",
    "nodes": "keylane.cli.lists:nodes_command",
    "events": "keylane.cli.lists:events_command",
    "rebalance": "keylane.cli.actions:rebalance_command",
    "reset-offsets": "keylane.cli.actions:reset_offsets_command",
    "drain": "keylane.cli.actions:drain_command",
    "config": "keylane.cli.config_command:config_command",
    "check": "keylane.cli.check:check_command",
    "assign": "keylane.cli.assign:assign_command",
    "plan": "keylane.cli.plan:plan_command",
    "advise": "keylane.cli.advise:advise_command",
    "spark": "keylane.pipeline.cli:spark_command",
    "docs": "keylane.cli.manual:docs_command",
    "completion": "keylane.cli.completion:completion_command",
})  # fmt: skip
"""Module and name of each command, loaded when it is named: while `keylane proxy` starts, clients
wait for what is imported."""


class LazyGroup(click.Group):
    """Loads a command when it is asked for, and no other."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's interface
        """Names in the order in which help shows them."""
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's interface
        cmd_name: str,
    ) -> click.Command | None:
        """Return the command, or None for a name that is none."""
        target = COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, name = target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(
    cls=LazyGroup,
    context_settings=dict(HELP_NAMES),
    no_args_is_help=False,
)
@click.version_option(__version__, message="keylane %(version)s")
def keylane() -> None:
    """More working consumers than partitions on Kafka, every key in order."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = keylane.main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    except click.UsageError as error:
        return _end(arguments, explain_usage(error), BAD_ARGUMENTS)
    except click.Abort:
        return INTERRUPTED
    except KeylaneError as error:
        bad = isinstance(error, ConfigInvalid)
        return _end(arguments, str(error), BAD_ARGUMENTS if bad else FAILED)
    except OSError as error:
        return _end(arguments, explain_os_error(error), FAILED)
    return code if isinstance(code, int) else 0


def _end(arguments: Sequence[str], text: str, code: int) -> int:
    """Write why a command ends, on one line that begins with its name."""
    print(f"{_path(arguments)}: {' '.join(text.split())}", file=sys.stderr)
    return code


def _path(arguments: Sequence[str]) -> str:
    """Return the name of the command that the arguments name, such as `keylane spark jars`."""
    names, command = [PROGRAM], cast(click.Command, keylane)
    context = click.Context(keylane, info_name=PROGRAM)
    for word in arguments:
        found = command.get_command(context, word) if isinstance(command, click.Group) else None
        if found is None:
            break
        names.append(word)
        command = found
    return " ".join(names)


if __name__ == "__main__":
    sys.exit(main())
