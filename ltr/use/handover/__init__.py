"""An encoded corpus handed over to others: a file for each of the formats that they read."""
