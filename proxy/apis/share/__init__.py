"""Handlers of share fetches and acknowledgements, for groups whose keys are kept in order."""
