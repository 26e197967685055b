"""A Run or a Diagnosis drawn: one view a package, none of which imports another."""
