"""`keylane completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from keylane.usage import HELP_NAMES

VARIABLE: Final = "_KEYLANE_COMPLETE"
"""`click` looks for it: it is made of the program's name."""
SHELLS: Final[dict[str, type[ShellComplete]]] = {
    "bash": BashComplete,
    "zsh": ZshComplete,
    "fish": FishComplete,
}


@click.command(
    "completion",
    context_settings=dict(HELP_NAMES),
    short_help="Shell completion for bash, zsh or fish.",
)
@click.argument("shell", type=click.Choice(tuple(SHELLS)))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> int:
    """Print the script that completes commands and options.

    For bash: `eval "$(keylane completion bash)"` in ~/.bashrc; for zsh the same in ~/.zshrc; for
    fish: `keylane completion fish > ~/.config/fish/completions/keylane.fish`.
    """
    complete = SHELLS[shell](ctx.find_root().command, {}, "keylane", VARIABLE)
    script = complete.source_template % complete.source_vars()
    click.echo(script)
    return 0
