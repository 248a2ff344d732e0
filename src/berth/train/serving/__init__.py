"""Export of trained models for serving without berth."""
