"""The tables, frontiers and figures of PriMORL's paper, with ours beside them."""
