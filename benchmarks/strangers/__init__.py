"""Programs that nobody here wrote: public repositories, unchanged as healthy runs, with one mechanical mutation as sick ones."""
