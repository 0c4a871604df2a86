"""The command-line application: global options, help, registration, and the one place where errors are shown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from omnirl import console
from omnirl.commands import data, doctor, noise, plan, quickstart, recipe, score, train
from omnirl.commands import run as run_commands
from omnirl.errors import Exit, OmniError

PROGRAM = "omnirl"
RECIPES_AND_DATA = "Recipes and data"
RUN = "Run"
HYDRA_WORDS = "words"


class Color(StrEnum):
    """When to use colour."""

    auto = "auto"
    always = "always"
    never = "never"


class Group(TyperGroup):
    """The top-level group: errors become one line and an exit code, commands are listed by panel."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] in ("--install-completion", "--show-completion"):
            from omnirl.commands import shell

            console.line(shell.answer(args[0], args[1:]))
            raise typer.Exit
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `omnirl ... | head -1` has read all it wants
            raise typer.Exit from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line; every expected failure is shown in one way and gives its exit code."""
        given = {"args": args, "prog_name": prog_name, "complete_var": complete_var, **extra}
        if not standalone_mode:
            return super().main(**given, standalone_mode=False)
        try:
            outcome = super().main(**given, standalone_mode=False)
        except OmniError as error:
            console.report(error)
            outcome = int(error.exit)
        except TyperException as mistake:
            _show_mistake(mistake)
            outcome = mistake.exit_code
        sys.exit(outcome if isinstance(outcome, int) else Exit.OK)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        width = max(map(len, self.commands))
        for name, command in self.commands.items():
            if not command.hidden:
                summary = command.get_short_help_str(formatter.width - width - 6)
                panel = getattr(command, "rich_help_panel", None) or "Commands"
                panels.setdefault(panel, []).append((name.ljust(width), summary))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


app = typer.Typer(
    name=PROGRAM,
    cls=Group,
    help="Take the Qwen3-Omni Thinker through reinforcement-learning post-training.",
    epilog="Start here: omnirl quickstart",
    no_args_is_help=True,
    # Plain help costs half of rich's start-up and prints `[q_proj]` whole.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(argv: list[str]) -> int:
    """Run the command line; returns the exit code."""
    try:
        app(args=argv, prog_name=PROGRAM)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else Exit.OK
    return Exit.OK


def _show_mistake(mistake: TyperException) -> None:
    message = mistake.format_message()
    ctx = getattr(mistake, "ctx", None)
    if ctx is None or message.startswith("Usage:"):  # no arguments at all: the message is the help
        console.note(message)
        return
    hint = f"`{ctx.command_path} --help` shows what it takes"
    if (
        message.startswith("No such option")
        and "Possible" not in message
        and any(p.name == HYDRA_WORDS for p in ctx.command.params)
    ):
        hint = f"words for verl go after `--`: `{ctx.command_path} ... -- key=value`"
    console.usage(message[:1].lower() + message[1:].rstrip("."), hint)


def _show_version(value: bool) -> None:
    if value:
        from omnirl import machine

        console.line(f"{PROGRAM} {machine.version(PROGRAM) or 'unknown'}")
        raise typer.Exit


@app.callback()
def _options(
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, show_default=False, help="Say more; repeat for more.")
    ] = 0,
    quiet: Annotated[
        int, typer.Option("--quiet", "-q", count=True, show_default=False, help="Say less; -qq drops warnings.")
    ] = 0,
    color: Annotated[Color, typer.Option(help="Colour the output.", envvar="OMNIRL_COLOR")] = Color.auto,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Show no progress.")] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_show_version, is_eager=True, help="Show the version (add --json for all)."
        ),
    ] = False,
) -> None:
    console.configure(verbosity=verbose - quiet, color=color.value, progress=not no_progress)


app.command("quickstart", rich_help_panel=RUN, epilog=quickstart.EXAMPLES)(quickstart.quickstart)
app.command("plan", rich_help_panel=RUN, epilog=plan.EXAMPLES)(plan.plan)
app.command("train", rich_help_panel=RUN, epilog=train.EXAMPLES)(train.train)
app.command("doctor", rich_help_panel=RUN, epilog=doctor.EXAMPLES)(doctor.doctor)
app.add_typer(run_commands.app, name="run", rich_help_panel=RUN)
app.add_typer(recipe.app, name="recipe", rich_help_panel=RECIPES_AND_DATA)
app.add_typer(data.app, name="data", rich_help_panel=RECIPES_AND_DATA)
app.command("score", rich_help_panel=RECIPES_AND_DATA, epilog=score.EXAMPLES)(score.score)
app.command("noise", rich_help_panel=RECIPES_AND_DATA, epilog=noise.EXAMPLES)(noise.noise)
