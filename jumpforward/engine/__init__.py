"""Requests over time."""
