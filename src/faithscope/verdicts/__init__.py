"""What scores say: intervals, tests, comparisons, sentences."""
