//go:build nixl && cgo && linux

package nixl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	slotSize = 4 << 20 // bytes of one request at most: far above what a network needs to be busy with
	// awayFactor times the memory in use may be away besides, with reads that were given up.
	awayFactor = 3
	// restTime is how long memory lies idle after a transfer that failed. That its request has ended means that no byte
	// comes any more; if a version of the library should say so too early, the bytes have this long to land.
	restTime = 5 * time.Second
)

// slot is memory for one request. Only one request ever writes to it at a time.
type slot struct {
	mem    []byte
	pieces []piece
	rested time.Time // when it may be used again
}

func (s *slot) extent() extent { return extentOf(s.mem) }

func extentOf(mem []byte) extent {
	return extent{uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), uint64(len(mem))}
}

// bounce is the memory that reads go through, because nothing can stop a transfer: it must not end in the caller's.
type bounce struct {
	inUse chan struct{} // as many as are in use by callers
	// grow maps and registers one more, which mapped counts already.
	grow func(context.Context) error

	mu      sync.Mutex
	free    []*slot
	resting []*slot // after a failure, oldest first
	mapped  int
	away    int // in quarantine
	lost    int // given up
}

func newBounce(bytes int, grow func(context.Context) error) *bounce {
	return &bounce{inUse: make(chan struct{}, max(1, bytes/slotSize)), grow: grow}
}

// take returns a slot to whoever has put a token into inUse. It does not take the token back on failure.
func (b *bounce) take(ctx context.Context) (*slot, error) {
	for {
		s, err := b.idleOrRoom()
		if s != nil || err != nil {
			return s, err
		}
		if err := b.grow(ctx); err != nil {
			return nil, fmt.Errorf("taking bounce memory: %w", err)
		}
	}
}

// idleOrRoom is a slot, or nil for the right to add one.
func (b *bounce) idleOrRoom() (*slot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.idle(); s != nil {
		return s, nil
	}
	if b.mapped >= (1+awayFactor)*cap(b.inUse) {
		return nil, fmt.Errorf("%w: %d bytes", ErrExhausted, b.mapped*slotSize)
	}
	b.mapped++
	return nil, nil
}

// shrink returns up the right to add a slot.
func (b *bounce) shrink() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mapped--
}

// discard parts with a slot that the library does not know, and returns why.
func (b *bounce) discard(s *slot, why error) error {
	b.shrink()
	return errors.Join(why, syscall.Munmap(s.mem))
}

// idle is a slot to be used again, if there is one. The last one used comes first: it is in the processor's cache.
func (b *bounce) idle() *slot {
	if n := len(b.free); n > 0 {
		s := b.free[n-1]
		b.free = b.free[:n-1]
		return s
	}
	if len(b.resting) > 0 && time.Now().After(b.resting[0].rested) {
		s := b.resting[0]
		b.resting = b.resting[1:]
		return s
	}
	return nil
}

// put takes a slot back, whose request has ended: as it should, or not.
func (b *bounce) put(s *slot, failed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if failed {
		s.rested = time.Now().Add(restTime)
		b.resting = append(b.resting, s)
		return
	}
	b.free = append(b.free, s)
}

// quarantine counts slots that their callers left while a request may write to them; -1 for one that has ended.
func (b *bounce) quarantine(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away += n
}

// giveUp parts with a slot for ever. Its pages go back to the system: what lands later lands in new ones.
func (b *bounce) giveUp(s *slot) {
	b.mu.Lock()
	b.lost++
	b.mu.Unlock()
	_ = syscall.Madvise(s.mem, syscall.MADV_DONTNEED) // memory that stays is no more than a waste
}

func (b *bounce) use() MemoryUse {
	b.mu.Lock()
	defer b.mu.Unlock()
	bytes := func(slots int) int64 { return int64(slots) * slotSize }
	return MemoryUse{Mapped: bytes(b.mapped), Quarantined: bytes(b.away), GivenUp: bytes(b.lost)}
}

// unmap returns what nothing writes to. It is for when the agent is no more.
func (b *bounce) unmap() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all error
	for _, s := range append(b.free, b.resting...) {
		all = errors.Join(all, syscall.Munmap(s.mem))
		b.mapped--
	}
	b.free, b.resting = nil, nil
	return all
}

// mapAnonymous takes memory off the Go heap, all zeros. It costs nothing before it is written to.
func mapAnonymous(bytes int) ([]byte, error) {
	const flags = syscall.MAP_PRIVATE | syscall.MAP_ANON | syscall.MAP_NORESERVE
	mem, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, flags)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes: %w", bytes, err)
	}
	return mem, nil
}
