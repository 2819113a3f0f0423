"""Comparing runs: is a difference real, or the luck of queries and seeds?"""
