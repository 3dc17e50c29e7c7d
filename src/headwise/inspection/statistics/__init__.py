"""What is counted of weights, in blocks of queries."""
