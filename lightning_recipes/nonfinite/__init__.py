"""Where a number stopped being finite: what was seen, how it is found, how it is kept."""
