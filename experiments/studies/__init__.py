"""Studies: what is compared and what is shown, one file for each table or figure of the paper."""
