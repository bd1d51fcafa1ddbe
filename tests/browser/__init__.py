"""Package whose tests share one Chromium."""
