"""Load: much of everything at once, and a long run of all of it. `make load` runs it whole, the suite in small."""
