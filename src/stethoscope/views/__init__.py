"""A Run or a Diagnosis into something to look at: one view a package, none of which imports another."""
