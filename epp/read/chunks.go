package read

import "github.com/tandem-serving/tandem/pd/body"

// After the first directChunks chunks of a body, chunks shorter than tinyChunk (bytes) are copied together into segments of at
// most joinedSize bytes. The bookkeeping of a chunk takes forty times the memory of a chunk of one byte, and clients choose the
// size of their chunks.
const (
	directChunks = 64
	tinyChunk    = 512
	joinedSize   = 4096
)

// chunks is a body that is buffered as it arrives.
type chunks struct {
	body.Body
	joined []byte // tiny chunks, copied together, that are not in Body yet; its spare capacity takes the next ones
}

func (c *chunks) reset() {
	c.Body.Reset()
	c.joined = nil
}

// size returns how many bytes were added.
func (c *chunks) size() int64 { return c.Len() + int64(len(c.joined)) }

// add adds a chunk. It is copied only if it is tiny, and late.
func (c *chunks) add(chunk []byte) {
	if len(chunk) >= tinyChunk || len(c.Segments()) < directChunks {
		c.flush()
		c.Append(chunk)
		return
	}
	if len(chunk) > cap(c.joined)-len(c.joined) {
		c.flush()
		c.joined = make([]byte, 0, joinedSize)
	}
	c.joined = append(c.joined, chunk...)
}

// flush appends the joined tiny chunks to the body as one segment, and leaves the rest of the array to later ones.
func (c *chunks) flush() {
	c.Append(c.joined)
	c.joined = c.joined[len(c.joined):]
}
