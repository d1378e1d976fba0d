"""The experiments of scripts/lab.py."""
