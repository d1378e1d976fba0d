"""Converts SentencePiece's tokenizer.model to tokenizer.json, as transformers does."""


def convert(pieces, scheme=None, split=False):
    """Returns the tokenizer.json of `pieces`, a SentencePieceProcessor, as a dict. With scheme None, normalizers replace
    spaces, as in the first files of Llama-2 and Mistral. Otherwise, Metaspace with this prepend_scheme does, as in later
    files."""
    names = [pieces.id_to_piece(i) for i in range(pieces.vocab_size())]
    plain = [i for i in range(len(names)) if not (pieces.is_control(i) or pieces.is_unknown(i) or pieces.is_byte(i))]
    ids = {names[i]: i for i in plain}
    merges = []
    for name, i in ids.items():
        cuts = [(name[:k], name[k:]) for k in range(1, len(name))]
        cuts = [(a, b) for a, b in cuts if a in ids and b in ids]
        merges += [(-pieces.get_score(i), sorted(cuts, key=lambda cut: (ids[cut[0]], ids[cut[1]])))]
    merges = [" ".join(cut) for _, cuts in sorted(merges, key=lambda merge: merge[0]) for cut in cuts]
    fallback = any(pieces.is_byte(i) for i in range(len(names)))
    special = [i for i in range(len(names)) if pieces.is_control(i) or pieces.is_unknown(i)]
    bos = names[pieces.bos_id()]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": names[i], "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i in special],
        "normalizer": None if scheme else {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme,
                          "split": split} if scheme else None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [pieces.bos_id()], "tokens": [bos]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": names[pieces.unk_id()],
                  "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
                  "byte_fallback": fallback, "ignore_merges": False,
                  "vocab": {name: i for i, name in enumerate(names)}, "merges": merges}}
