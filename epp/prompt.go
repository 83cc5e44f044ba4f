package epp

import (
	"hash/maphash"

	"github.com/tandem-serving/tandem/pd/body"
)

// section is a part of a prompt. Engines render them in this order, whatever order they have in the body: a conversation
// shares the blocks of its tools with all others, even if the client sends the tools last.
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
	isText     kind = iota + 1 // a string; what is in an array instead has members of its own
	isPrompt                   // a string, or an array of strings, of token ids, or of arrays of ids
	isPart                     // a value that counts as its JSON, such as an image, unless there is a text inside
	isPartType                 // the type of the part around it
)

// Marks tell apart what is the same bytes.
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

// Tokens of media, whose size cannot be known here. An image has llm-d's default, 640×360 pixels of which 1024 make a token;
// a sound is taken to last 10 s at 25 tokens a second, a video to be 8 such images.
const (
	imageTokens = 640 * 360 / 1024
	audioTokens = 10 * 25
	videoTokens = 8 * imageTokens
)

// mediaTokens is how many tokens a part of a type has, 0 for one that is no medium: its JSON is taken for text.
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

// maxPartType is more than the length of any type that mediaTokens knows (bytes).
const maxPartType = 32

// promptReader makes a Prompt of the members of a body that belong to it, while they arrive.
type promptReader struct {
	spec  BlockSpec
	texts [sections]digest
	plain unescaper
	list  promptList
	parts [maxDepth]openPart
	keys  []uint64
}

// openPart is a part that is being read.
type openPart struct {
	raw    maphash.Hash
	length int // bytes
	kind   []byte
	known  bool // by a text inside it
}

func (p *promptReader) reset(spec BlockSpec) {
	p.spec = spec
	for i := range p.texts {
		p.texts[i].reset(spec)
	}
	p.plain.reset()
	p.list.reset()
	for i := range p.parts {
		p.parts[i].raw.SetSeed(seed)
		p.parts[i].reset()
	}
}

func (o *openPart) reset() {
	o.raw.Reset()
	o.length, o.kind, o.known = 0, o.kind[:0], false
}

// take reads a piece of a member's value.
func (p *promptReader) take(m *member, value body.Kind, piece []byte, last bool) {
	d := &p.texts[m.section]
	switch {
	case value == body.Null: // as if it were not there
	case m.kind == isPart:
		p.takePart(m, d, piece, last)
	case m.kind == isPrompt && value == body.Array:
		p.list.write(d, piece)
	case value != body.String: // a text in parts, whose members come by themselves, or what no engine takes
	case m.kind == isPartType:
		o := &p.parts[m.depth-1]
		o.kind = append(o.kind, piece[:min(len(piece), maxPartType-len(o.kind))]...)
	default:
		p.plain.write(d, piece)
		if last {
			p.plain.end(d)
			d.mark(markText)
			p.tell(m.depth)
		}
	}
}

// takePart reads a piece of a part. Where a chunk ends within one, its text may come after the piece: what was hashed of it
// till then is dropped.
func (p *promptReader) takePart(m *member, d *digest, piece []byte, last bool) {
	o := &p.parts[m.depth]
	if !o.known {
		o.raw.Write(piece) // never fails
		o.length += len(piece)
	}
	if !last {
		return
	}
	if !o.known {
		d.mark(o.raw.Sum64())
		if n := mediaTokens(o.kind); n > 0 {
			o.length = n * tokenBytes
		}
		d.skip(o.length)
	}
	o.reset()
	p.tell(m.depth)
}

// tell notes that the parts around something are known by it.
func (p *promptReader) tell(depth int) {
	for i := range depth {
		p.parts[i].known = true
	}
}

// finish gives the prompt, whose hashes stand for root too. It is valid until reset.
func (p *promptReader) finish(root uint64) Prompt {
	length := 0
	p.keys = p.keys[:0]
	for i := range p.texts {
		d := &p.texts[i]
		length += d.length
		for _, state := range d.keys[:min(len(d.keys), p.spec.Max-len(p.keys))] {
			p.keys = append(p.keys, mix(state, root))
		}
		root = mix(root, d.sum())
	}
	out := Prompt{Tokens: (length + tokenBytes - 1) / tokenBytes, BlockTokens: p.spec.Tokens}
	if p.spec.wanted() {
		out.Blocks = p.keys
	}
	return out
}
