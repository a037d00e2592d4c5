"""Online private policy optimisation: users arrive, each is used once, and every update is a noised release."""
