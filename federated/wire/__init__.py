"""What travels between agents and coordinator, and how: tensors, messages, topics, chunks and
links. No torch anywhere.
"""
