"""When and where to look: seams, taps, schedule, ledger, and the Watcher that joins them.

Nothing is imported here: the guard is used where there is no torch.
"""
