"""Mechanism, accounting, ledger, audits, privacy statements."""
