"""Share groups at the control port: their windows, metrics, reports, and part of the live page."""
