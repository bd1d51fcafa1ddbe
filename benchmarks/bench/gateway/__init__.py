"""What a call costs in the gateway that carries it: FairServe on both data planes, and LiteLLM."""
