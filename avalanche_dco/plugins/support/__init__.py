"""What the plugins share: sampling, gradients, isolation, checks, reporting, state."""
