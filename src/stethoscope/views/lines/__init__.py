"""Blocks of styled lines that the terminal, the TUI and the notebook share: verdict, heatmap, runs, sparklines."""
