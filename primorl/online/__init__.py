"""Online private policy gradient: cohorts of arriving users, one noised release each."""
