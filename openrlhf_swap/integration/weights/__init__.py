"""The policy's weights on their way to vLLM's engines, by vLLM's own weight transfer.

`source` has the weights, in pieces. To an engine on the policy's own GPU they travel as CUDA IPC
handles (`ipc`), to other GPUs over NCCL (`nccl`), on a CPU as bytes over Ray (`over_ray`). `way`
says which of these a run takes.
"""
