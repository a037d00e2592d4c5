"""The command `primorl`: one module for each group of subcommands."""
