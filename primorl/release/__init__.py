"""What may leave: the bundle and its model card."""
