"""Scripts that draw the built-in data sets and train the two shipped networks."""
