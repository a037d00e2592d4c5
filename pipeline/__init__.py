"""What DVC runs, one script a stage: read params, call the library, write files, log."""

import primorl  # noqa: F401  first of all: it tells OpenMP how to wait, which torch reads when it is loaded
from primorl.base.processes import collect_garbage_rarely

collect_garbage_rarely()
