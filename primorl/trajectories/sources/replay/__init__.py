"""Behaviour policies trained here, every episode recorded."""
