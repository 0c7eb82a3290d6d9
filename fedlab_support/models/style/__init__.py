"""Encoders and decoders for style transfer."""
