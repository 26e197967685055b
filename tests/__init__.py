"""The tests mirror src."""
