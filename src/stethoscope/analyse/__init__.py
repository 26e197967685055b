"""From recorded series to derived ones: pure functions over arrays, no torch, no side effects."""
