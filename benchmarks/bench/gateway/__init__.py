"""The cost of a call in the gateway that carries it: FairServe and LiteLLM."""
