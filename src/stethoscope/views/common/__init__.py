"""What every face uses: numbers and words as people read them, evidence and windows of a run, colors, styled text."""
