package replica

import (
	"sync"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

const (
	// journalHashes and journalPrompts are how many hashes of blocks, and how many prompts, wait for the slowest replica: 8 MiB, which are
	// 16 million tokens in blocks of 16.
	journalHashes  = 1 << 20
	journalPrompts = 1 << 13
	// maxBlocks is how many blocks of one prompt are told, from its beginning: 2 million tokens in blocks of 16. A line has one such prompt
	// at most.
	maxBlocks = 1 << 17
	// promptRate is how many bytes of hashes one replica is told in a second. A block of 16 tokens takes 8 bytes, its text some 64: so it
	// is reached where prompts of 64 MB come in a second.
	promptRate = 8 << 20
)

// journal holds the prompts that this picker has learned lately, as the hashes of their blocks, for replicas that are yet to be told. Where it
// is full, the oldest ones go.
type journal struct {
	mu      sync.Mutex
	hashes  []uint64  // a ring
	end     uint64    // how many hashes there were so far
	prompts []learned // a ring
	last    uint64    // how many prompts there were so far
}

// learned is one prompt.
type learned struct {
	matcher string // what learned it, by SharedAs
	to      *epp.Endpoint
	from    uint64 // the position of its first hash
	blocks  int
	at      time.Time
}

func newJournal() *journal {
	return &journal{hashes: make([]uint64, journalHashes), prompts: make([]learned, journalPrompts)}
}

// add notes that a matcher has learned a prompt. It is called at picks: it copies the hashes, and allocates nothing.
func (j *journal) add(matcher string, to *epp.Endpoint, blocks []uint64) {
	blocks = blocks[:min(len(blocks), maxBlocks, len(j.hashes))]
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.prompts[j.last%uint64(len(j.prompts))] = learned{matcher, to, j.end, len(blocks), now}
	j.last++
	n := copy(j.hashes[j.end%uint64(len(j.hashes)):], blocks)
	copy(j.hashes, blocks[n:])
	j.end += uint64(len(blocks))
}

// oldest returns the position of the oldest prompt that the journal has.
func (j *journal) oldest() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.has(0)
}

// has returns the position of the first prompt from a position on that the journal has, or that of the next one to come. The caller holds mu.
func (j *journal) has(at uint64) uint64 {
	if n := uint64(len(j.prompts)); j.last > n {
		at = max(at, j.last-n)
	}
	for at < j.last && j.end-j.prompts[at%uint64(len(j.prompts))].from > uint64(len(j.hashes)) {
		at++
	}
	return at
}

// next returns the prompt at a position, or else the first one after it that the journal still has, with its hashes appended to blocks, and
// moves the position behind it. lost is how many it no longer had. ok is false if there is none.
func (j *journal) next(at *uint64, blocks []uint64) (one learned, all []uint64, lost uint64, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	from := *at
	*at = j.has(from)
	lost = *at - from
	if *at == j.last {
		return learned{}, blocks, lost, false
	}
	one = j.prompts[*at%uint64(len(j.prompts))]
	*at++
	begin := int(one.from % uint64(len(j.hashes)))
	first := min(one.blocks, len(j.hashes)-begin)
	blocks = append(blocks, j.hashes[begin:begin+first]...)
	return one, append(blocks, j.hashes[:one.blocks-first]...), lost, true
}
