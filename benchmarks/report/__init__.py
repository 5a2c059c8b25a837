"""The report and the tables in the documentation, made from results."""
