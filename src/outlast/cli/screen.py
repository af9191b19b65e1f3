"""The one way out: what a command prints goes through here, without secrets and made harmless."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.secrets import passwords, redact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Screen", "harmless"]

# Control characters but tab and newline, and those that turn the direction of writing: what a
# stranger stored must not drive the terminal of whoever looks at it.
_HARMFUL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def harmless(text: str) -> str:
    """The text with control characters spelled out."""
    return _HARMFUL.sub(lambda found: ascii(found[0])[1:-1], text)


class Screen:
    """Standard output and standard error of one run of the program."""

    def __init__(self, args: Sequence[str], environment: Mapping[str, str]) -> None:
        self.debug = "--debug" in args
        self._secrets: set[str] = set()
        for text in (*args, environment.get("OUTLAST_URL", "")):
            self.hide(text)

    def hide(self, url: str) -> None:
        """From now on, the passwords of this URL are masked wherever they turn up."""
        self._secrets.update(passwords(url))

    def clean(self, text: str) -> str:
        """What may be shown of a text."""
        longest_first = sorted(self._secrets, key=len, reverse=True)
        return harmless(redact(text, longest_first))

    def line(self, text: str = "") -> None:
        """A line of the answer, on standard output."""
        click.echo(self.clean(text))

    def note(self, text: str) -> None:
        """A line beside the answer, on standard error."""
        click.echo(self.clean(text), err=True)

    def json(self, value: Any) -> None:
        """The answer as one JSON document, ASCII only."""
        import json

        click.echo(json.dumps(self._cleaned(value), indent=2, allow_nan=False))

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()
    ) -> None:
        """Rows under headings; plain columns unless standard output is a terminal.

        ``numbers`` names the columns that are aligned to the right.
        """
        shown = [[self.clean(cell).replace("\n", " ") for cell in row] for row in rows]
        if sys.stdout.isatty():
            _rich_table(columns, shown, numbers)
        else:
            _plain_table(columns, shown, numbers)

    def traceback(self, error: BaseException) -> None:
        """The whole traceback, without secrets, on standard error."""
        self.note("".join(traceback.format_exception(error)).rstrip("\n"))

    def mask_logging(self) -> None:
        """Let no secret into what the root logger's handlers write from now on."""
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_Formatter(self))

    def _cleaned(self, value: Any) -> Any:
        if isinstance(value, str):
            return redact(value, sorted(self._secrets, key=len, reverse=True))
        if isinstance(value, dict):
            return {self._cleaned(key): self._cleaned(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._cleaned(item) for item in value]
        return value


class _Formatter(logging.Formatter):
    """Time, level, logger and message, then whatever structured fields the record carries."""

    _USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def __init__(self, screen: Screen) -> None:
        super().__init__("%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s")
        self._screen = screen

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        extra = {key: value for key, value in vars(record).items() if key not in self._USUAL}
        head, newline, rest = text.partition("\n")
        fields = "".join(f" {key}={value}" for key, value in extra.items() if value is not None)
        return self._screen.clean(head + fields + newline + rest)


def _plain_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str]
) -> None:
    lines = [list(columns), *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        cells = [
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def _rich_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        right = column in numbers
        table.add_column(column, justify="right" if right else "left", no_wrap=right)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
