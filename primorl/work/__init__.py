"""Paid work on private rows: fitting, the bill, payment, and opening the rows."""
