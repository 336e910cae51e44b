"""Finds the DAPO configuration with the best accuracy for its compute."""
