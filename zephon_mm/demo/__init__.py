"""What ``zephon-mm demo`` does: shards of real photos and clips, a tiny model, a stop, a resume."""
