"""The Gaussian ensemble: its private training, its release, the pessimistic MDP made from it."""
