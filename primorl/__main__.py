"""``python -m primorl``: the command ``primorl``."""

from primorl.commands.main import main

raise SystemExit(main())
