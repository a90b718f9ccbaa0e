"""Stock clients of other languages on lanes: built from their registries, and judged alike."""
