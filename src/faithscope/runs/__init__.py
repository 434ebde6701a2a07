"""What a run leaves behind, and how it survives."""
