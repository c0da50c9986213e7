"""Callbacks for any LightningModule: they say when, the pure rooms say what."""
