"""Plots over plain data: in the terminal, as pictures with matplotlib, as moving pictures."""
