"""FairServe: fair multi-tenant middleware between agent applications and LLM engines."""
