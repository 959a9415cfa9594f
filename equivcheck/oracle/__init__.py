"""The truth in fp64, and a proven bound for every element."""
