"""What servers and owners of resident tables share: which shard has a key, and the files of a checkpoint."""
