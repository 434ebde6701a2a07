"""Remove what a method points to, and train again."""
