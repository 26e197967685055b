"""What a session needs around it: where the run goes, what is said, how the process may end, who helps."""
