"""The `outlast` program: its commands, loaded when they are asked for, and its exit codes."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from outlast.cli.screen import Screen
from outlast.cli.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["COMMANDS", "Program", "program"]

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "worker": ("outlast.cli.work", "Run tasks until stopped."),
    "status": ("outlast.cli.reading", "Count the jobs of every queue and task."),
    "jobs": ("outlast.cli.reading", "List jobs, newest first."),
    "show": ("outlast.cli.reading", "Show all there is to know of a job."),
    "workers": ("outlast.cli.reading", "List the workers."),
    "enqueue": ("outlast.cli.enqueuing", "Store a job of a task."),
    "retry": ("outlast.cli.acting", "Queue dead or cancelled jobs again."),
    "cancel": ("outlast.cli.acting", "Cancel jobs, queued or running."),
    "purge": ("outlast.cli.acting", "Delete a queue's jobs."),
    "pause": ("outlast.cli.acting", "Let no worker take jobs from a queue."),
    "resume": ("outlast.cli.acting", "Let workers take jobs from a queue again."),
    "health": ("outlast.cli.health", "Say by exit code whether all is well."),
    "backup": ("outlast.cli.saving", "Copy the store while it is in use, and verify the copy."),
    "migrate": ("outlast.cli.migrating", "Bring the store's tables up to date."),
    "move": ("outlast.cli.moving", "Move every job of one store into another."),
    "relay": ("outlast.cli.relaying", "Move jobs on from an outbox to the store."),
    "doctor": (
        "outlast.cli.doctor",
        "Look at the store behind URL and say what accepted jobs survive.",
    ),
    "check": ("outlast.cli.check", "Find out whether a task may run twice."),
    "bench": ("outlast.cli.bench", "Measure this machine and this disk."),
    "demo": ("outlast.cli.demo", "Work on real files while workers are killed; lose nothing."),
}
"""Each command's module, and what the list of commands says of it without loading it."""

LONGEST: Final = 4000
"""Characters of an error message."""

EXIT_CODES = """\
\b
Exit codes:
    0  done; for `health`: healthy
    1  no: refused, aborted, unhealthy, or not everything could be done
    2  the command line is wrong: option, module, task, arguments, URL
    3  no such job, queue or namespace
    4  the store can't be reached or used
    5  uncertain: it may or may not have happened; repeating is safe
   70  a bug in outlast
  130  interrupted
"""


class Program(click.Group):
    """A group that imports a command's module only when that command runs.

    It turns every error into one line without secrets, and an exit code.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (module, _) in COMMANDS.items() if _exists(module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module, _ = COMMANDS.get(cmd_name, ("", ""))
        if not module or not _exists(module):
            return None
        command = getattr(importlib.import_module(module), cmd_name)
        assert isinstance(command, click.Command), f"{module}.{cmd_name} is no command"
        if not any("--debug" in parameter.opts for parameter in command.params):
            command.params.append(_debug())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            raise click.UsageError(f"there is no command {name!r}{did_you_mean(name, known)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        screen = Screen(given, os.environ)

        def run() -> Any:
            return super(Program, self).main(
                given, prog_name, complete_var, standalone_mode=False, obj=screen, **extra
            )

        if not standalone_mode:
            return run()
        sys.exit(_exit_code(run, screen))


def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _exit_code(run: Callable[[], Any], screen: Screen) -> int:
    try:
        answer = run()
    except click.ClickException as error:
        if screen.debug and error.__cause__ is not None:
            screen.traceback(error.__cause__)
        text = io.StringIO()
        error.show(text)
        screen.note(_short(text.getvalue().rstrip("\n")))
        return error.exit_code
    except click.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            return 130
        screen.note("Stopped; nothing was changed.")
        return 1
    except Exception as error:
        return _failed(error, screen)
    return answer if isinstance(answer, int) else 0


def _failed(error: Exception, screen: Screen) -> int:
    """Say in one line what went wrong, and choose the exit code."""
    code = _code_of(error)
    if screen.debug:
        screen.traceback(error)
    if code != 70:
        screen.note(_short(f"Error: {str(error) or type(error).__name__}"))
        return code
    more = "" if screen.debug else " (--debug shows where)"
    screen.note(_short(f"Error: unexpected {type(error).__name__}: {error}") + more)
    return code


def _short(text: str) -> str:
    """The message without most of what somebody gave that was far too long."""
    left = len(text) - LONGEST
    return f"{text[:LONGEST]}... and {left} more characters" if left > 0 else text


def _code_of(error: Exception) -> int:
    from outlast import errors

    if isinstance(error, errors.ConfigurationError | errors.TaskError | errors.CodecError):
        return 2
    if isinstance(error, errors.Unsupported):
        return 2
    if isinstance(error, errors.JobNotFound):
        return 3
    if isinstance(error, errors.EnqueueUncertain):
        return 5
    if isinstance(error, errors.StoreError):
        return 4
    return 1 if isinstance(error, errors.OutlastError) else 70


def _debug() -> click.Option:
    """Known to every command, in any place: ``Screen`` looks for the word itself."""
    return click.Option(
        ["--debug"], is_flag=True, expose_value=False, help="Show tracebacks of errors."
    )


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"outlast {version('outlast')}")
    ctx.exit()


@click.group(
    cls=Program,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Show the version and exit.",
)
def program() -> None:
    """A persistent task queue: what was accepted is never lost.

    The store is named by --url, by --app MODULE:APP, or by OUTLAST_URL or OUTLAST_URL_FILE in the
    environment. A password belongs in the environment or the file: a command line can be read by
    every user of the machine.
    """


program.params.insert(0, _debug())
