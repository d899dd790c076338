"""Communication between agents and coordinator: tensors, messages, topics, chunks and links.
Torch-free.
"""
