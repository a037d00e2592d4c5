"""Online learning on control tasks: the papers' tables, with the strict columns beside them."""
