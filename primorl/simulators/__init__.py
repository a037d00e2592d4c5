"""Gymnasium environments for sources and for evaluation."""
