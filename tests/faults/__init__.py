"""Faults in noise, clip, sampling, accounting, ledger and sensitivity, and the test that must
notice each.

``python -m tests.faults`` plants every fault alone in a copy of the project and runs its test
there.
"""
