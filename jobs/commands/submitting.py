"""`tiercache submit` and `tiercache logs`: sweeps as jobs of a Ray cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.commands.options import Data, Database, First, SpecPath
from jobs.printable import printable

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

NOT_FOUND = 127  # a shell's exit code for a command that isn't there

Address = Annotated[
    str,
    typer.Option(
        "--address", metavar="URL", envvar="RAY_API_SERVER_ADDRESS", help="Dashboard of the Ray cluster, on its head."
    ),
]
LOCAL = "http://127.0.0.1:8265"


def submit(
    spec: SpecPath,
    address: Address = LOCAL,
    db: Database = None,
    data: Data = None,
    n: First = None,
    working_dir: Annotated[
        Path, typer.Option("--working-dir", metavar="DIR", help="Folder to upload; the job runs in a copy of it.")
    ] = Path("."),
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Show the log until the job ends.")] = False,
    max_upload: Annotated[str, typer.Option("--max-upload", metavar="SIZE", help="Largest upload.")] = "100MB",
) -> None:
    """Run a sweep as a job of a Ray cluster. Everything is checked first; a job that runs already isn't run twice."""
    from jobs.job_client import connect
    from jobs.submit import commands, prepare, send

    submission = prepare(spec, data, n, db, working_dir, max_upload)
    client = connect(address)
    for note in submission.notes:
        typer.echo(f"note: {note}", err=True)
    job, runs = send(client, submission)
    typer.echo(f"{job} runs already; nothing was started." if runs else f"submitted: {job}")
    for purpose, command in commands(submission, job, address):
        typer.echo(f"  {purpose:8} {printable(command)}")
    if wait:
        from jobs.job_client import exit_code, follow

        try:
            ended = follow(client, job, _write)
        except KeyboardInterrupt:
            typer.echo(f"{job} goes on; to stop it, see above.", err=True)
            raise typer.Exit(130) from None
        _tell(ended)
        raise typer.Exit(exit_code(ended))


def logs(
    job: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A submitted job. Default: the newest sweep's.")
    ] = None,
    address: Address = LOCAL,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
) -> None:
    """Print the log of a submitted sweep."""
    from jobs.job_client import answered, connect, pick_job, sweep_jobs
    from jobs.job_client import follow as follow_job

    client = connect(address)
    name = str(pick_job(sweep_jobs(client), job).submission_id)
    if not follow:
        with answered(address):
            _write(client.get_job_logs(name))
        return
    try:
        _tell(follow_job(client, name, _write))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _write(text: str) -> None:
    typer.echo(printable(text), nl=False)


def _tell(job: "JobDetails") -> None:
    """How a job ended, and why, where its log doesn't tell."""
    typer.echo(f"{job.submission_id}: {str(job.status).lower()}", err=True)
    if job.driver_exit_code == NOT_FOUND:
        typer.echo("tiercache was not found: install the package on each node, on the PATH that Ray has.", err=True)
    elif job.driver_exit_code is None and job.message and str(job.status) == "FAILED":
        from jobs.submit import DATABASE, without_password

        url = (job.runtime_env or {}).get("env_vars", {}).get(DATABASE)
        typer.echo(printable(without_password(str(job.message), url)[:2000]), err=True)
