"""`bench sweep`: runs over a grid of settings, and how results depend on them."""
