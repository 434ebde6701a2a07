"""How faithfulness is probed: perturb the input, or remove and retrain."""
