"""The command line, ``zephon-mm``: one file a command, `main` puts them together."""
