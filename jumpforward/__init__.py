"""Grammar-constrained generation on Hugging Face models with fewer forward passes."""

__version__ = "0.1.0"
