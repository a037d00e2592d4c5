"""The version of the private engine.

Developers raise `ENGINE_VERSION` when a release could differ in distribution: another way to sample, clip, add noise,
train locally, or step the server. A faster way to the same sums leaves it alone. Models state the version that made
them. A paid model is restored whatever the version: an upgrade never charges the same people again by itself.

`SOURCES` is a digest of the engine's source without comments and docstrings. ``tests/training/test_engine_version.py``
fails when it differs, so that somebody decides: raise the version, or keep it, then record the digest that the test
prints.
"""

ENGINE_VERSION = 2
SOURCES = "a24c6042b477e015208ceeb2cbb1abaa1dac0b413ca216f852ab43c0580bc407"
