"""The CUDA kernel of a rule, which a GPU runs on request, and a CPU in tests.

code        stage 4 for a GPU: the CUDA source of a schedule
kernel.hpp  the part of it that no recipe changes
kernel      compiles it, and launches it for many weights
shim.hpp    lets g++ compile the same source, and runs it on a CPU
"""
