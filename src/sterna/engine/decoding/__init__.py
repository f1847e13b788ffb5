"""What may come next, what is drawn and what is guessed: sampling, masks, grammars, drafts."""
