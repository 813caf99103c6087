"""`tiercache capacity`: what fits a GPU, and how fast it can be at best, before anything runs."""

import json
from typing import Annotated

import typer


def capacity(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Of `tiercache models`, `reasoner`, a folder or a .gguf file.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="'NAME KNOB=VALUE …'", help="Repeat for several: 'h2o budget=0.5'."),
    ] = None,
    context: Annotated[
        str, typer.Option("--context", metavar="N,…", help="Tokens of a sequence, prompt and generated.")
    ] = "2048,8192,32768,131072",
    prompt: Annotated[int, typer.Option("--prompt", min=1, help="How many of them are the prompt's.")] = 512,
    batch: Annotated[str, typer.Option("--batch", metavar="N,…", help="Sequences decoded together.")] = "1,8,64",
    dtype: Annotated[str, typer.Option("--dtype", help="Of weights and cache. Default: the checkpoint's.")] = "auto",
    t1_read: Annotated[
        str | None,
        typer.Option(
            "--t1-read", metavar="merge|stream|mirror", help="How host memory is read. Default: the policy's."
        ),
    ] = None,
    gpu: Annotated[str, typer.Option("--gpu", metavar="SIZE", help="Memory of the GPU.")] = "80GiB",
    hbm_gbps: Annotated[float, typer.Option("--hbm-gbps", help="Its bandwidth, GB/s.")] = 3350.0,
    bus_gbps: Annotated[float, typer.Option("--bus-gbps", help="Of the bus, one direction, GB/s.")] = 64.0,
    host_gbps: Annotated[float, typer.Option("--host-gbps", help="Of host memory, GB/s.")] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Plain data instead of tables.")] = False,
) -> None:
    """Show what fits a GPU: bytes of each tier, bus traffic, largest batch, an upper bound on tokens/s."""
    from jobs.capacity import DEFAULT_POLICIES, as_data, capacities, find_shape, notes, read_bytes, read_counts, tables
    from jobs.report import console
    from tiercache.gpus import Machine

    machine = Machine(read_bytes(gpu, "--gpu"), hbm_gbps, bus_gbps, host_gbps)
    contexts, batches = read_counts(context, "--context"), read_counts(batch, "--batch")
    shape = find_shape(model)
    groups = capacities(shape, policy or DEFAULT_POLICIES, contexts, prompt, dtype, t1_read, machine)
    if as_json:
        typer.echo(json.dumps(as_data(model, groups, batches), indent=1, ensure_ascii=False))
        return
    screen = console()
    for table in tables(groups, batches, screen.width):
        screen.print(table)
    for note in notes(model, groups[0][0], contexts, groups[0]):
        typer.echo(note)
