"""Hostile checks: each rebuilds a part of the guarantee on its own and compares, with as few
imports as it can.
"""
