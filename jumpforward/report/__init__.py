"""What a grammar forces, shown: documents walked through it, and tokens laid over it."""
