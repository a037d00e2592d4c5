"""Paid work on private rows: fitting, the bill, payment, and the door to the rows."""
