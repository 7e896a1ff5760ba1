"""``zephon-mm``: puts the commands together and turns this package's errors into one line."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from ..errors import ZephonError
from .bench import bench
from .demo import demo
from .digest import digest
from .frames import frames
from .index import index
from .measure import measure
from .show import show
from .verify import verify

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help=(
        "An elastic, deterministic loader for vision-language pre-training: WebDataset shards "
        "in, packed batches out.\n\n"
        "Start with `zephon-mm demo`: it builds shards from real photos and clips, trains a tiny "
        "model on them, stops, resumes, and shows that nothing changed.\n\n"
        "On your own data: `index` the shards, write a YAML config, `measure` what its sources "
        "give, and check with `digest` that ranks, workers and resumes change no batch. Training "
        "itself is `from zephon_mm import Loader`.\n\n"
        "Where two runs part: `verify` finds the first step that differs, and `show` prints what a "
        "step trains on.\n\n"
        "On one clip: `frames` prints its frames, their times and exact pixels; `bench decode` "
        "compares decoders on your clips."
    ),
)


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    del debug  # read by run()


for _command in (index, digest, measure, verify, show, frames, demo):
    app.command()(_command)
app.add_typer(bench, name="bench")


def run() -> None:
    """Entry point of the script: errors of this package are one line on stderr, exit status 1."""
    try:
        app()
    except ZephonError as error:
        if "--debug" in sys.argv:
            raise
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print(f"[bold red]{type(error).__name__}[/]:", end=" ")
        console.print(" ".join(str(error).split()), markup=False)
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
