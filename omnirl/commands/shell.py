"""Shell completion scripts: what typer generates, installed without touching a start-up file twice."""

from __future__ import annotations

from pathlib import Path

from omnirl.errors import EnvironmentLacks, UsageMistake

PROGRAM = "omnirl"
FILES = {"bash": "omnirl.bash", "zsh": "_omnirl", "fish": "omnirl.fish"}
_START_UP = {"bash": ".bashrc", "zsh": ".zshrc"}


def answer(option: str, words: list[str]) -> str:
    """What `--show-completion [SHELL]` or `--install-completion [SHELL]` prints on stdout.

    Raises:
        UsageMistake: the shell is unknown, or there are further words.
        EnvironmentLacks: no shell is named and none can be detected, or its files cannot be written.
    """
    if len(words) > 1:
        raise UsageMistake(f"`{option}` takes one shell, not `{' '.join(words)}`", hint=f"`{PROGRAM} {option} bash`")
    shell = words[0] if words else _detect(option)
    if shell not in FILES:
        raise UsageMistake(f"there is no completion for the shell `{shell}`", hint=f"one of {', '.join(FILES)}")
    if option == "--show-completion":
        return script(shell)
    return f"{shell} completion is in {_install(shell)}; open a new terminal to use it"


def script(shell: str) -> str:
    """The completion script for one of the shells in FILES."""
    from typer._completion_shared import get_completion_script

    text = get_completion_script(prog_name=PROGRAM, complete_var=f"_{PROGRAM.upper()}_COMPLETE", shell=shell)
    if shell == "zsh":
        # Read as an autoloaded function the script only defines itself: the first TAB would complete nothing.
        call = f'_{PROGRAM}_completion "$@"'
        text += f"\nif [[ $zsh_eval_context[-1] == loadautofunc ]]; then {call}; fi"
    return text


def _detect(option: str) -> str:
    from typer._completion_shared import _get_shell_name

    shell = _get_shell_name()
    if shell is None:
        raise EnvironmentLacks("the shell could not be detected", hint=f"name it: `{PROGRAM} {option} bash`")
    return shell


def _install(shell: str) -> Path:
    from typer._completion_shared import install

    start_up = Path.home() / _START_UP[shell] if shell in _START_UP else None
    before = start_up.read_text() if start_up and start_up.is_file() else None
    try:
        _, path = install(shell=shell, prog_name=PROGRAM, complete_var=f"_{PROGRAM.upper()}_COMPLETE")
        path.write_text(script(shell) + "\n")
        if start_up and before is not None and _is_set_up(shell, before, path):
            start_up.write_text(before)
    except OSError as error:
        raise EnvironmentLacks(
            f"the completion could not be installed: {error}",
            hint=f"`{PROGRAM} --show-completion {shell}` prints it, to put where your shell reads it",
        ) from error
    return path


def _is_set_up(shell: str, text: str, path: Path) -> bool:
    return (str(path) if shell == "bash" else ".zfunc") in text
