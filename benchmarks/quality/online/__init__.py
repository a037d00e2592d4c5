"""Online learning: the papers' tables on control tasks, with strict columns beside them, and regret on Riverswim."""
