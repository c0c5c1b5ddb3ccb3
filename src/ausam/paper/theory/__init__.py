"""The paper's lemma and theorems, measured."""
