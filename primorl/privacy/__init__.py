"""Mechanism, accounting, ledger, privacy statements."""
