"""`edge-agent finetune`: adapt a released network to the device's own data."""
