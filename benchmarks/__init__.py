"""Speed against named peers; run by hand, never in CI."""
