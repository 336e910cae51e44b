"""Sweeps that are disturbed at random instants: what is killed, and what must hold after it."""
