"""Bytes to tokens and back. Nothing here knows a grammar."""
