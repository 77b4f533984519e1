"""Help pages of the commands: names of arguments and kinds of values, as docs/command-line.md writes them."""

import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

#: Names of arguments that differ from those of the parameters.
_ARGUMENTS = {"session_id": "ID", "session_ids": "ID"}
#: Kinds of values by the name that typer shows; a flag takes none.
_KINDS = {
    "bool": "",
    "str": "TEXT",
    "path": "PATH",
    "file": "FILE",
    "FileText": "FILE",
    "int": "NUMBER",
    "float": "NUMBER",
    "int range": "NUMBER",
    "float range": "NUMBER",
}
_LIST = re.compile(r"list\[(.*)\]")


class CommandTree(TyperGroup):
    """Root of the command line, which names the values of all commands below it."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the root."""
        parameters = super().get_params(ctx)
        for parameter in parameters:
            _name_value(parameter, ctx)
        return parameters

    def invoke(self, ctx: Any) -> Any:
        """Run a command; make sentences of pydantic's words about a wrong value."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            text = error.message.removeprefix("Value error, ")
            text = re.sub("Input should be (?=greater|less)", "it takes a number ", text)
            error.message = text.replace("Input should be ", "it takes ")
            raise

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command of this name, if there is one."""
        command = super().get_command(ctx, cmd_name)
        for below in _list_commands(command):
            for parameter in below.get_params(ctx):
                _name_value(parameter, ctx)
        return command


def _list_commands(command: Any) -> Iterator[Any]:
    """Yield a CLI command and all commands below it."""
    if command is not None:
        yield command
        for below in getattr(command, "commands", {}).values():
            yield from _list_commands(below)


def _name_value(parameter: Any, ctx: Any) -> None:
    """Set the name under which help, usage and errors show the value of a parameter, unless it has one."""
    kind = _LIST.sub(r"\1", parameter.display_type(ctx).strip("<>"))
    if parameter.metavar is None and parameter.param_type_name == "option":
        parameter.metavar = _KINDS.get(kind, kind)
    elif parameter.metavar is None:
        name = "FILE" if kind == "file" else _ARGUMENTS.get(parameter.name, parameter.name.upper())
        parameter.metavar = name if parameter.nargs == 1 else f"{name}…"
    if parameter.param_type_name == "argument":
        usage = parameter.metavar if parameter.required else f"[{parameter.metavar}]"
        parameter.get_usage_pieces = lambda ctx: [usage]
        parameter.display_type_rich = lambda ctx: ""  # the name stands alone, without `<str>`
