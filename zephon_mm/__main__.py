"""``python -m zephon_mm``: the command line."""

from .cli.main import run

run()
