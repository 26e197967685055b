"""Long histories in fewer numbers: buckets of steps, taken together into rollups, and old steps thinned out.

- Every sealed segment has buckets of 2**6 steps beside its rows: lowest, highest, mean and last value (`buckets`).
- Sixteen segments, then sixteen of those, and so on, share one file of longer buckets, a rollup (`rollup`, `building`):
  a million steps are a few files. Questions about many steps are answered from these (`reading`).
- Where the disk budget asks for it, old rows are dropped and their buckets stay (`thin`, `selection`).

On disk a segment's buckets are the table `pyramid`, and a rollup is a `ladder/rank=N/rung-*.parquet`.
"""
