"""Private evaluation: estimators of today's return, of a policy's return, and of the
model's error.
"""
