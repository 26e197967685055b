"""The fault benchmark: every bug of the catalogue and every healthy run, as small programs that really train."""
