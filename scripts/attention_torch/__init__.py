"""The mechanisms of attention/*.cuh in plain PyTorch (variants.py) and the model around them (qwen.py): what fixtures are made with, and
what checkpoints carry. Nothing but torch is needed, but for modeling_attention_variants.py, which transformers loads."""
from .parts import Inputs, Notes, Tensor, window
from .variants import OWN_LOSS, TABLE, tensor_prefix
