"""Subscribers to the engine's events."""
