"""Networks of the paper's families: full-size ones and small ones by the same classes."""
