"""What the benchmarks share: groups of ranks that take orders, peers, statistics, tables, plots."""
