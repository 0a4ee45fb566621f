"""A page on one's own machine to look at run folders with: runs, samples, plans, comparisons. It reads and never writes."""
