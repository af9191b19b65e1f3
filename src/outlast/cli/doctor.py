"""`outlast doctor`: what a deployment really survives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.loading import find_celery
from outlast.cli.target import warn_of_password
from outlast.location import find_url
from outlast.store import Durability

if TYPE_CHECKING:
    from outlast.cli.screen import Screen
    from outlast.doctor import Report
    from outlast.doctor.restart import Survival
    from outlast.doctor.torture import Toll

__all__ = ["doctor"]


@click.command()
@click.argument("url", required=False)
@click.argument("celery_app", metavar="[MODULE:APP]", required=False)
@click.option(
    "--require", type=click.Choice([str(each) for each in Durability]),
    help="The class that must hold (default: that of the URL, else power).",
)  # fmt: skip
@click.option("--deep", is_flag=True, help="Read every row, and check it.")
@click.option("--torture", type=click.IntRange(1, 86_400), metavar="SECONDS",
              help="Kill own workers in a scratch namespace, and look for losses.")  # fmt: skip
@click.option("--restart-cmd", metavar="COMMAND",
              help="Have jobs accepted, run this, and look whether they are there.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
@click.pass_obj
def doctor(
    screen: Screen,
    url: str | None,
    celery_app: str | None,
    require: str | None,
    deep: bool,
    torture: int | None,
    restart_cmd: str | None,
    as_json: bool,
) -> int:
    """Look at the store behind URL and say what accepted jobs survive.

    Without URL it is that of OUTLAST_URL or OUTLAST_URL_FILE. With the word celery in place of URL:
    what the Celery app MODULE:APP loses by its own settings and on its own server. Nothing of yours
    is changed. Exit codes: 0 fine, 1 weaker than required or broken, 2 can't tell, 3 unreachable.
    """
    required = None if require is None else Durability[require.upper()]
    if url == "celery" or celery_app is not None:
        more = deep or torture is not None or restart_cmd is not None
        if url != "celery" or celery_app is None or more:
            raise click.UsageError("write: outlast doctor celery MODULE:APP [--require] [--json]")
        return _told(screen, _celery(screen, celery_app, required), as_json)
    from outlast.doctor import examine

    warn_of_password(screen, url)
    url = url or find_url()
    if url is None:
        raise click.UsageError("which store? Say outlast doctor URL, or set OUTLAST_URL")
    screen.hide(url)
    report = asyncio.run(examine(url, required=required, deep=deep))
    code = _told(screen, report, as_json)
    if torture is not None and report.reached:
        from outlast.doctor.torture import torture as kill_and_check

        verdict = _tried(screen, kill_and_check(url, seconds=float(torture)), as_json)
        code = code or verdict
    if restart_cmd is not None and report.reached:
        from outlast.doctor.restart import restart

        verdict = _tried(screen, restart(url, restart_cmd), as_json)
        code = code or verdict
    return code


def _tried(screen: Screen, verdict: Toll | Survival, as_json: bool) -> int:
    if as_json:
        screen.json(verdict.document())
    else:
        for line in verdict.lines():
            screen.line(line)
    return verdict.exit_code


def _celery(screen: Screen, spec: str, required: Durability | None) -> Report:
    from outlast.doctor.celery import examine

    app = find_celery(spec)
    for url in (app.conf.broker_url, app.conf.broker_read_url, app.conf.result_backend):
        for one in [url] if isinstance(url, str) else url or ():
            screen.hide(one)
    return examine(app, required=required)


def _told(screen: Screen, report: Report, as_json: bool) -> int:
    if as_json:
        screen.json(_document(report))
    else:
        _show(screen, report)
    return report.exit_code


def _document(report: Report) -> dict[str, Any]:
    return {
        "url": report.url,
        "accepted": None if report.accepted is None else str(report.accepted),
        "completed": None if report.completed is None else str(report.completed),
        "required": str(report.required),
        "exit_code": report.exit_code,
        "findings": [
            {
                "id": finding.id,
                "severity": str(finding.severity),
                "read": finding.read,
                "means": finding.means,
                "remedy": finding.remedy,
                "durability": None if finding.durability is None else str(finding.durability),
            }
            for finding in report.findings
        ],
    }


_SURVIVES = {
    Durability.MEMORY: "can die with the process",
    Durability.PROCESS: "survives kill -9, not a power cut",
    Durability.POWER: "survives kill -9 and a power cut, not the loss of the disk",
    Durability.REPLICA: "survives the loss of a machine",
}


def _show(screen: Screen, report: Report) -> None:
    screen.line(report.url)
    for what, found in (("accepted", report.accepted), ("completed", report.completed)):
        if found is None:
            screen.line(f"{what:10} can't be told")
        else:
            verdict = "ok" if found >= report.required else f"required: {report.required}"
            screen.line(f"{what:10} {found!s:8} {_SURVIVES[found]}  [{verdict}]")
    for finding in (*report.worst(), *(f for f in report.findings if f.severity == "ok")):
        screen.line(f"  {finding.severity!s:8} {finding.id:6} {finding.read}")
        if finding.severity != "ok":
            for text in (finding.means, finding.remedy and f"do: {finding.remedy}"):
                if text:
                    screen.line(f"{'':18}{text}")
