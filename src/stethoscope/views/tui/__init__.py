"""The terminal as an instrument: runs, one run, one layer, kept up to date, by the keys of the page.

Every screen is a pure function from (OpenRun, View, size) to lines of styled text, drawn beside the event loop and put on
the screen whole; Textual gives it keys, clock and terminal. Nothing here imports torch or writes to a run.
"""
