"""Programs that a user could run in keylane's place, found on this machine or left out."""
