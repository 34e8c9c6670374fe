"""Parts of scripts/arbiter.py: cases, the kernels of others, how they are judged, planted errors."""
