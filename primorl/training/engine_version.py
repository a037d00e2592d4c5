"""The version of the private engine.

Developers raise `ENGINE_VERSION` when a release could differ in distribution: another way to sample, clip, add noise,
train locally, or step the server. A faster way to the same sums leaves it alone. Models state the version that made
them. A paid model is restored whatever the version: an upgrade never charges the same people again by itself.

`SOURCES` is a digest of the engine's source without comments and docstrings. ``tests/training/test_engine_version.py``
fails when it differs, so that somebody decides: raise the version, or keep it, then record the digest that the test
prints.
"""

ENGINE_VERSION = 4
SOURCES = "b01feeafc89d8d2ada3f4d307f8e6022bceeec6c0b77a5fa979940bab8112be5"
