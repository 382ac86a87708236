"""A demonstration over real data: a year of flights, an agent for each aircraft."""
