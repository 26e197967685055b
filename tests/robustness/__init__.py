"""Every row of the table of faults and promises, with real faults: `python -m tests.robustness` prints how each was kept."""
