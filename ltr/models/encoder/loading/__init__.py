"""Pretrained models from their folders, and back into folders."""
