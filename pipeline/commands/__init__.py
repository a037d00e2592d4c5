"""The subcommands of ``primorl``, one module each: ``HELP``, ``EXAMPLES``, ``add_arguments(parser)``, ``run(arguments)``."""
