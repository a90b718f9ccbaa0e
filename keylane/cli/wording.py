"""One line for what was wrong with a command's arguments: the thing, and the cure.

`click` has the facts; its own texts span lines, and end in a dump of the usage.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import click
from click.exceptions import BadOptionUsage, NoSuchCommand, NoSuchOption


def explain_usage(error: click.UsageError) -> str:
    """Return a line about arguments that cannot be used, without the name of the command."""
    ctx = error.ctx
    if isinstance(error, NoSuchOption):
        return f"no option {error.option_name}{_cure(ctx, error.option_name, _options(ctx))}"
    if isinstance(error, NoSuchCommand):
        return f"no command {error.command_name}{_cure(ctx, error.command_name, _commands(ctx))}"
    if isinstance(error, BadOptionUsage):
        # One class for a value too many and a value too few; it has no context to look at.
        too_many = "does not take a value" in error.message
        return f"{error.option_name}: {'takes no value' if too_many else 'needs a value'}"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return _missing(error.param)
    if isinstance(error, click.BadParameter) and error.param is not None:
        text = error.message.replace(" range.", ".")  # "not a valid integer range": of any number
        return f"{_name(error.param)}: {_lower(text)}"
    if error.message == "Missing command.":
        return f"no command; it is one of {', '.join(_commands(ctx))}"
    extra = error.message.partition("unexpected extra argument")[2]
    if extra:
        return (
            f"unexpected argument{extra.lstrip('s').replace('(', '').replace(')', '')}{_see(ctx)}"
        )
    return _lower(error.message)


def explain_os_error(error: OSError) -> str:
    """Return the path once, and what was wrong with it."""
    text = error.strerror or str(error)
    return text if error.filename is None else f"{error.filename}: {text}"


def near(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was most likely meant; an abbreviation counts as near."""
    names = list(known)
    longer = [name for name in names if word and name.startswith(word)]
    found = get_close_matches(word, names, n=1, cutoff=0.6) or longer[:1]
    return found[0] if found else None


def _cure(ctx: click.Context | None, word: str, known: Iterable[str]) -> str:
    meant = near(word, known)
    return f"; did you mean {meant}?" if meant else _see(ctx)


def _see(ctx: click.Context | None) -> str:
    return f"; see {ctx.command_path} --help" if ctx is not None else ""


def _options(ctx: click.Context | None) -> list[str]:
    if ctx is None:
        return []
    params = [param for param in ctx.command.get_params(ctx) if not getattr(param, "hidden", False)]
    return [name for param in params for name in param.opts if name.startswith("--")]


def _commands(ctx: click.Context | None) -> list[str]:
    group = None if ctx is None else ctx.command
    return group.list_commands(ctx) if ctx and isinstance(group, click.Group) else []


def _missing(param: click.Parameter) -> str:
    about = getattr(param, "help", None)
    hint = f" {param.metavar}" if isinstance(param, click.Option) and param.metavar else ""
    return f"{_name(param)}{hint} is missing{f' ({_lower(about)})' if about else ''}"


def _name(param: click.Parameter) -> str:
    """Return the name by which a user gives the parameter."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return param.human_readable_name


def _lower(text: str) -> str:
    """Return a sentence of click's as the end of a line."""
    text = text.strip().rstrip(".")
    return text[:1].lower() + text[1:]
