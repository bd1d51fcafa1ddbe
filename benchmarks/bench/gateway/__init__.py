"""The cost of a call in the gateway that carries it: FairServe on both data planes, and LiteLLM."""
