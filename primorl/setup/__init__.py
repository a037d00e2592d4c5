"""From params.yaml and the manifest to what the private engine takes. Reads no private byte."""
