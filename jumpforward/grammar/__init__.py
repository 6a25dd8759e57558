"""Grammars, and what their bytes force. Nothing here knows a token."""
