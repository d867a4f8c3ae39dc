"""The paper, a folder for each experiment, with all that is its own, and its statements."""
