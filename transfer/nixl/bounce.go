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
	slotSize = 4 << 20 // largest size of one request in bytes: far more than a network needs to be busy
	// awayFactor times the memory in use may additionally be in quarantine, for reads that were cancelled.
	awayFactor = 3
	// restTime is how long memory stays unused after a failed transfer. When a request has ended, no more bytes should arrive;
	// if a version of the library reports the end too early, the bytes have this long to arrive.
	restTime = 5 * time.Second
)

// slot is memory for one request. Only one request writes to it at a time.
type slot struct {
	mem    []byte
	pieces []piece
	rested time.Time // when it may be used again after a failure
}

func (s *slot) extent() extent { return extentOf(s.mem) }

func extentOf(mem []byte) extent {
	return extent{uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), uint64(len(mem))}
}

// bounce is the memory that reads use, because a transfer cannot be stopped and so must not write to the caller's memory.
type bounce struct {
	inUse chan struct{} // one token for each slot that a caller uses
	// grow maps and registers one more slot, which mapped already counts.
	grow func(context.Context) error

	mu      sync.Mutex
	free    []*slot
	resting []*slot // after a failure, oldest first
	mapped  int
	away    int // in quarantine
	lost    int // never used again
}

func newBounce(bytes int, grow func(context.Context) error) *bounce {
	return &bounce{inUse: make(chan struct{}, max(1, bytes/slotSize)), grow: grow}
}

// take returns a slot to a caller that has put a token into inUse. It does not remove the token on failure.
func (b *bounce) take(ctx context.Context) (*slot, error) {
	for {
		s, err := b.idleOrQuota()
		if s != nil || err != nil {
			return s, err
		}
		if err := b.grow(ctx); err != nil {
			return nil, fmt.Errorf("taking bounce memory: %w", err)
		}
	}
}

// idleOrQuota returns an idle slot, or nil for the right to add one.
func (b *bounce) idleOrQuota() (*slot, error) {
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

// shrink gives up the right to add a slot.
func (b *bounce) shrink() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mapped--
}

// discard removes a slot that the library does not know, and returns why.
func (b *bounce) discard(s *slot, why error) error {
	b.shrink()
	return errors.Join(why, syscall.Munmap(s.mem))
}

// idle returns an idle slot if there is one: the one used last, because it is in the processor's cache.
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

// put returns a slot whose request has ended, successfully or not.
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

// quarantine counts slots whose callers left while a request may write to them; -1 for one that has ended.
func (b *bounce) quarantine(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away += n
}

// giveUp never uses a slot again. Its pages are returned to the system; bytes that arrive later use new ones.
func (b *bounce) giveUp(s *slot) {
	b.mu.Lock()
	b.lost++
	b.mu.Unlock()
	_ = syscall.Madvise(s.mem, syscall.MADV_DONTNEED) // on failure the memory is only wasted
}

func (b *bounce) use() MemoryUse {
	b.mu.Lock()
	defer b.mu.Unlock()
	bytes := func(slots int) int64 { return int64(slots) * slotSize }
	return MemoryUse{Mapped: bytes(b.mapped), Quarantined: bytes(b.away), GivenUp: bytes(b.lost)}
}

// unmap unmaps slots to which nothing writes. It may be called only after the agent has ended.
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

// mapAnonymous returns zeroed memory outside the Go heap. Pages are allocated at the first write.
func mapAnonymous(bytes int) ([]byte, error) {
	const flags = syscall.MAP_PRIVATE | syscall.MAP_ANON | syscall.MAP_NORESERVE
	mem, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, flags)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes: %w", bytes, err)
	}
	return mem, nil
}
