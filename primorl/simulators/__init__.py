"""Gymnasium environments that a dataset's source and its evaluation share; they know nothing of either."""
