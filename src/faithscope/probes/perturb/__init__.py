"""Perturb the input and ask the model: the fewest passes, packed into batches, and scored."""
