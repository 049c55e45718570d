"""vLLM, as it serves: continuous batches of prompts, with weights made up here, because there is no network."""

import json
import tempfile
from pathlib import Path

from program import needed, right

vllm = needed("vllm")

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 4, "vocab_size": 1000,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "torch_dtype": "float16",
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
TOKENS = 16

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(CONFIG))
        engine = vllm.LLM(
            directory, load_format="dummy", skip_tokenizer_init=True, max_model_len=256, gpu_memory_utilization=0.7
        )
        prompts = [{"prompt_token_ids": [3 + (start + step) % 900 for step in range(32)]} for start in range(24)]
        wanted = vllm.SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0.0, detokenize=False)
        first, again = ([each.outputs[0].token_ids for each in engine.generate(prompts, wanted)] for _ in range(2))
    right(all(len(tokens) == TOKENS for tokens in first) and len(first) == len(again) == len(prompts), "vllm")
