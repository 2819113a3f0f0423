"""A pretrained encoder over the texts of a batch: loaded, read without padding where it can be, and
pooled.
"""
