"""Committed progress of groups: intervals, state, what was scanned, the journal and its store."""
