"""Steps of weights that are sharded over processes: agreement, owners, and sums over shards.

shards      which part of a weight each process holds, and sums over whole weights
messages    one all-to-all of bytes between the processes of a mesh
owners      a weight that its rule needs whole is stepped by one process
agreement   all processes step the same weights, or none moves any
"""
