package read

import (
	"hash"
	"slices"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd/body"
)

// section is a part of a prompt. Engines render the sections in this order, whatever their order in the body: conversations
// with the same tools share the tools' blocks even if a client sends the tools last.
type section uint8

const (
	inTools section = iota
	inSystem
	inDialog
	sections
)

// kind says what a wanted member is to the prompt.
type kind uint8

const (
	isText     kind = iota + 1 // a string; an array in its place is described by members of its own
	isPrompt                   // a string, or an array of strings, of token ids, or of arrays of ids
	isPart                     // a value that counts as its JSON, such as an image, unless there is a text inside
	isPartType                 // the type of the part around it
)

// Marks distinguish prompts whose text has the same bytes.
const (
	markText = iota + 1 // the end of a text
	markIDs             // what follows are token ids
)

// member is a member of a request body that is part of the prompt.
type member struct {
	path    string
	kind    kind
	section section
	depth   int // how many parts are around it, less than maxDepth for a part
}

// maxDepth is 2 for the parts in the result of a tool, which is a part itself.
const maxDepth = 2

// Estimated tokens of media, whose real size is unknown here. An image counts as llm-d's default of 640×360 pixels at 1024
// pixels a token, audio as 10 s at 25 tokens a second, a video as 8 such images.
const (
	imageTokens = 640 * 360 / 1024
	audioTokens = 10 * 25
	videoTokens = 8 * imageTokens
)

// mediaTokens returns the estimated tokens of a part of a type. It returns 0 for a part that is not media: its JSON counts
// as text.
func mediaTokens(partType []byte) int {
	switch string(partType) {
	case "image", "image_url", "input_image", "image_pil", "image_embeds":
		return imageTokens
	case "input_audio", "audio_url", "audio_embeds":
		return audioTokens
	case "video", "video_url", "input_video":
		return videoTokens
	}
	return 0
}

// maxPartType is longer than any type that mediaTokens knows (bytes).
const maxPartType = 32

// promptReader builds an epp.Prompt from the members of a body that belong to the prompt, while they arrive.
type promptReader struct {
	spec  epp.PromptSpec
	hash  *hasher
	texts [sections]digest
	plain unescaper
	list  promptList
	parts [maxDepth]partState
	keys  []uint64
	media []uint64 // hashes of the items
}

// maxMedia bounds the items of one prompt that are told apart. Engines take far fewer.
const maxMedia = 1024

// partState is the state of a part that is being read.
type partState struct {
	raw      hash.Hash64 // of its JSON
	length   int         // bytes
	partType []byte
	hasText  bool // a text inside stands for the part; its JSON does not count
}

func (p *promptReader) reset(h *hasher, spec epp.PromptSpec) {
	p.hash, p.spec = h, spec
	for i := range p.texts {
		p.texts[i].reset(h, spec)
	}
	p.plain.reset()
	p.list.reset()
	p.media = p.media[:0]
	for i := range p.parts {
		if p.parts[i].raw == nil {
			p.parts[i].raw = h.stream()
		}
		p.parts[i].reset()
	}
}

func (s *partState) reset() {
	s.raw.Reset()
	s.length, s.partType, s.hasText = 0, s.partType[:0], false
}

// read reads a piece of a member's value.
func (p *promptReader) read(m *member, value body.Kind, piece []byte, last bool) {
	d := &p.texts[m.section]
	switch {
	case value == body.Null: // counts as missing
	case m.kind == isPart:
		p.readPart(m, d, piece, last)
	case m.kind == isPrompt && value == body.Array:
		p.list.write(d, piece)
	case value != body.String: // an array of parts, which are members of their own, or a value that engines refuse
	case m.kind == isPartType:
		s := &p.parts[m.depth-1]
		s.partType = append(s.partType, piece[:min(len(piece), maxPartType-len(s.partType))]...)
	default:
		p.plain.write(d, piece)
		if last {
			p.plain.end(d)
			d.mark(markText)
			p.textFound(m.depth)
		}
	}
}

// readPart reads a piece of a part. If a chunk ends inside a part, the part's text may come after the piece; then the hash
// of the JSON so far is dropped.
func (p *promptReader) readPart(m *member, d *digest, piece []byte, last bool) {
	s := &p.parts[m.depth]
	if !s.hasText {
		s.raw.Write(piece) // never fails
		s.length += len(piece)
	}
	if !last {
		return
	}
	if !s.hasText {
		sum := s.raw.Sum64()
		d.mark(sum)
		if n := mediaTokens(s.partType); n > 0 {
			s.length = n * tokenBytes
			if len(p.media) < maxMedia {
				p.media = append(p.media, sum)
			}
		}
		d.skip(s.length)
	}
	s.reset()
	p.textFound(m.depth)
}

// textFound notes that the depth parts around a value are represented by what was read inside them.
func (p *promptReader) textFound(depth int) {
	for i := range depth {
		p.parts[i].hasText = true
	}
}

// finish returns the prompt and folds root into its hashes. It is valid until reset.
func (p *promptReader) finish(root uint64) epp.Prompt {
	length := 0
	p.keys = p.keys[:0]
	for i := range p.texts {
		d := &p.texts[i]
		length += d.length
		for _, state := range d.keys[:min(len(d.keys), p.spec.Max-len(p.keys))] {
			p.keys = append(p.keys, p.hash.mix(state, root))
		}
		root = p.hash.mix(root, d.sum())
	}
	out := epp.Prompt{Tokens: (length + tokenBytes - 1) / tokenBytes, BlockTokens: p.spec.Tokens}
	if wantsBlocks(p.spec) {
		out.Blocks = p.keys
	}
	if ids := p.texts[inDialog].ids; len(ids) > 0 && length == p.texts[inDialog].length {
		out.IDs = ids
	}
	if len(p.media) > 0 {
		slices.Sort(p.media)
		out.Media = slices.Compact(p.media)
	}
	return out
}
