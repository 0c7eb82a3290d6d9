"""What several methods share: styles, samples, grouping, clustering."""
