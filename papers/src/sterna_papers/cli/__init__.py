"""Commands that reproduce papers: `sterna bench figure`, `sterna bench peers`, `sterna tune`."""
