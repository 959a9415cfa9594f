"""Backends: one file a system, all behind `equivcheck.backends.protocol.Backend`.

A backend never sees the truth. It imports `case`, `arithmetic`, `problem` and `outcome`, builds the tensors that the
Problem describes, calls its system, and returns what it found.

- `registry` turns a subject's name into a backend; it imports neither torch nor any system.
- `layouts` puts arrays into torch tensors of the layout that a case asks for, inside poisoned memory.
- `driver` runs the program of a case on any system that torch tensors can drive: an adapter says how to load a state,
  call forward and backward, and read the state back; the calls around them (outstanding forwards, retained graphs,
  side streams, captured graphs, exceptions) are written once, there.
- `transfers` is where everything crosses between host and device: counted, timed, and looked at.
- `torch_embedding_bag` is plain PyTorch on any device (docs/devices.md): `torch_tables` is the system that is driven,
  `torch_lookup`, `torch_optimizers` and `torch_bounds` what it computes, `torch_inductor` the same compiled;
  `torch_devices` finds a device, `handshake` tries its promises, `torch_operators` and `torch_probe` its operators.
- `fbgemm` is FBGEMM's SplitTableBatchedEmbeddingBagsCodegen.
"""
