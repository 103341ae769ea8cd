"""Hostile input: a target for all that reads bytes from outside, a corpus of real bytes, and what mutates them."""
