"""Hours of training in which a fault strikes every few minutes: `bash scripts/soak.sh`."""
