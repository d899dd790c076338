"""Which submodel each agent gets: predicted cost, eligibility, past behaviour and selection."""
