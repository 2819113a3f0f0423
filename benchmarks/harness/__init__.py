"""What the benchmarks share: options, where a number was measured, and fair comparisons of several
contestants.
"""
