"""jaxdp's own adversary: random mechanisms, judged by references that share no code with it."""
