"""Charts by Altair: one theme, one file for each family of charts, and the report page."""
