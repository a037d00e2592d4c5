"""The subcommands of ``primorl``: ``HELP``, ``EXAMPLES``, ``add_arguments(parser)`` and ``run(arguments)`` each."""
