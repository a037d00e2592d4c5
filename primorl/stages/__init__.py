"""What each stage does: splitting, training, cloning, asking, the policy, learning online."""
