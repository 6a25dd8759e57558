"""One request's place in its grammar, over one vocabulary."""
