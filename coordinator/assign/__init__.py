"""Assignment of submodels to agents: eligibility, predicted cost, earlier rounds and selection."""
