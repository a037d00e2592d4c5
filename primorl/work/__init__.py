"""What a run will do, decided once, and the desk where its jobs are paid and get their rows."""
