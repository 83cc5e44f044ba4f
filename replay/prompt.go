package replay

import "math/bits"

// prompt is the prompt of a request, as a trace has it.
type prompt struct {
	parts   []int64 // identities of its beginning, each of `each` tokens
	streams []Stream
	own     uint64 // identity of what no other prompt shares
	each    int    // tokens of a part
	tokens  int
	seed    uint64
}

// prompt returns the prompt of request i, as long as it is with its answer if answered.
func (w *world) prompt(i int, answered bool) prompt {
	r := &w.trace.Requests[i]
	p := prompt{parts: r.Blocks, streams: r.Streams, own: mix(seed, uint64(i)), each: w.trace.BlockTokens, tokens: r.Input, seed: w.asks[r.Class].seed}
	if answered {
		p.tokens += r.Output - 1 // the last token is never computed
	}
	return p
}

// shared returns the identities of the parts that other prompts may begin with too.
func (p *prompt) shared() []uint64 {
	switch {
	case p.each == 0:
		return nil
	case len(p.streams) > 0:
		return p.blocks(p.each, p.tokens)
	}
	return p.blocks(p.each, len(p.parts))
}

// piece returns the identity of what a token belongs to, and where that ends.
func (p *prompt) piece(at int) (id uint64, end int) {
	if p.each > 0 && at/p.each < len(p.parts) {
		return uint64(p.parts[at/p.each]), (at/p.each + 1) * p.each
	}
	for i, s := range p.streams {
		if i == len(p.streams)-1 {
			return s.ID, p.tokens
		}
		if end += s.Tokens; at < end {
			return s.ID, end
		}
	}
	return p.own, p.tokens
}

// blocks returns the chained hashes of a prompt's whole blocks of size tokens, at most most.
func (p *prompt) blocks(size, most int) []uint64 {
	if size <= 0 {
		return nil
	}
	n := min(p.tokens/size, most)
	if n == 0 {
		return nil
	}
	all := make([]uint64, n)
	h := p.seed
	for i := range all {
		begin, end := i*size, (i+1)*size
		for at := begin; at < end; { // parts that the block is made of
			id, next := p.piece(at)
			h = mix(mix(h, id), uint64(at))
			at = next
		}
		all[i] = h
	}
	return all
}

// ids returns token ids of the prompt, at most most. Prompts that share parts share the ids of these parts, and no others.
func (p *prompt) ids(most int) []uint32 {
	n := min(p.tokens, most)
	if n <= 0 {
		return nil
	}
	all, parts := make([]uint32, 0, n), p.shared()
	for _, part := range parts {
		if len(all) == n {
			return all
		}
		all = appendPart(all, part, min(p.each, n-len(all)))
	}
	return appendPart(all, mix(p.own, uint64(len(parts))), n-len(all))
}

// appendPart appends token ids of a part of prompts, or of what no other prompt shares.
func appendPart(ids []uint32, part uint64, n int) []uint32 {
	for i := range n {
		part = part*0x5851f42d4c957f2d + 0x14057b7ef767814f + uint64(i)
		ids = append(ids, uint32(part>>32))
	}
	return ids
}

const seed = 0x9e3779b97f4a7c15

// mix returns a hash of two numbers.
func mix(a, b uint64) uint64 {
	high, low := bits.Mul64(a^0xa0761d6478bd642f, b^0xe7037ed1a0b428db)
	return high ^ low ^ bits.RotateLeft64(a, 23)
}
