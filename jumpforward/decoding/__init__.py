"""What goes into a chunk, and what is kept of it. No model here."""
