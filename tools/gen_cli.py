"""The page of all commands and options, docs/cli.md."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

import click

from keylane.cli.main import keylane

HEAD: Final = """# Command line

`keylane COMMAND --help` shows the same. This page is made from the commands.

- Exit status: 0 done, 1 failed, 2 bad arguments or configuration. `keylane demo` and
  `keylane spark` have more, named below. Ctrl-C is 130.
- Wrong input is one line on stderr. It names the command, the thing and the cure:
  `keylane proxy: no option --lane; did you mean --lanes?`.
- Options are never abbreviated.
- Commands that ask a node find its control port by `--control`, else `KEYLANE_CONTROL`, else
  `127.0.0.1:19090`. With TLS it is `https://HOST:PORT`. A token comes from `KEYLANE_CONTROL_TOKEN`
  ([security.md](security.md#the-control-port)).
- `-o json` and `-o yaml` print the answer of the control port ([control-api.md](control-api.md)),
  `-o table` a table. Colours are for terminals; `NO_COLOR=1` turns them off.
- `keylane completion bash|zsh|fish` prints the script by which a shell completes commands and
  options: `eval "$(keylane completion bash)"` in `~/.bashrc`.

"""
EXAMPLES: Final = {
    "keylane groups": "keylane groups --sort lag",
    "keylane describe": "keylane describe --group billing --watch --sort lag",
    "keylane events": "keylane events --group billing --follow",
    "keylane rebalance": "keylane rebalance --group billing --execute",
    "keylane reset-offsets": "keylane reset-offsets --group billing --topic orders:0,1 "
    "--to-datetime 2026-11-21T08:00:00.000 --execute",
    "keylane drain": "keylane drain --node 2",
    "keylane config": "keylane config --config keylane.yaml --changed",
    "keylane check": "keylane check --config keylane.yaml",
}
TABLE_HEAD: Final = "| option | meaning |\n|---|---|\n"


def cli_page() -> str:
    """Return the page."""
    return HEAD + "\n".join(_sections(keylane, click.Context(keylane, info_name="keylane")))


def _sections(group: click.Group, ctx: click.Context) -> Iterator[str]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if command.hidden:
            continue
        own = click.Context(command, info_name=name, parent=ctx)
        if isinstance(command, click.Group):
            yield from _sections(command, own)
        else:
            yield _section(command, own)


def _section(command: click.Command, ctx: click.Context) -> str:
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    about = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(command.help or ""))
    example = EXAMPLES.get(ctx.command_path)
    shown = f"{usage}\n{example}" if example else usage
    rows = [
        f"| {_names(param)} | {_meaning(param)} |"
        for param in command.params
        if isinstance(param, click.Option) and not param.hidden
    ]
    table = f"\n{TABLE_HEAD}{chr(10).join(rows)}\n" if rows else ""
    return f"## {ctx.command_path}\n\n```text\n{shown}\n```\n\n{about}\n{table}"


def _names(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len))
    if option.is_flag:
        return names
    choices = option.type.choices if isinstance(option.type, click.Choice) else None
    hint = "|".join(map(str, choices)) if choices else (option.metavar or "VALUE")
    return f"{names} {hint}".replace("|", "\\|")


def _meaning(option: click.Option) -> str:
    text = (option.help or "").replace("|", "\\|")
    notes = ["required"] if option.required else []
    if option.show_default:
        shown = option.show_default if isinstance(option.show_default, str) else option.default
        notes.append(f"default: {shown}")
    return f"{text} ({', '.join(notes)})" if notes else text
