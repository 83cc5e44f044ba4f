package transport

import (
	"fmt"
	"math"
	"sync"

	"github.com/tandem-serving/tandem/transfer"
)

// regions is the memory that one agent has registered.
type regions struct {
	mu     sync.RWMutex
	open   map[uint32]*region
	next   uint32
	closed bool
}

// region is one registered slice. Its lock is held for reading only while bytes are copied, and never while the owner waits for
// a peer: a peer that stops reading must not block the owner's writes or other peers.
type region struct {
	id    uint32
	owner *regions

	mu  sync.RWMutex
	mem []byte // nil once closed
}

func (rs *regions) register(mem []byte) (*region, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("registering memory: %w: no bytes", transfer.ErrInvalid)
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.closed {
		return nil, fmt.Errorf("registering memory: %w", transfer.ErrClosed)
	}
	if len(rs.open) == maxRegions || rs.next == math.MaxUint32 {
		return nil, fmt.Errorf("registering memory: %w: %d regions open, %d numbers used", transfer.ErrNotSupported, len(rs.open), rs.next)
	}
	r := &region{id: rs.next, owner: rs, mem: mem}
	if rs.open == nil {
		rs.open = make(map[uint32]*region)
	}
	rs.open[r.id] = r
	rs.next++
	return r, nil
}

func (rs *regions) get(id uint32) *region {
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	return rs.open[id]
}

// lengths returns the lengths of the registered regions, for the metadata. A region is removed from the map before its memory
// is, so lengths needs no lock of the region.
func (rs *regions) lengths() map[uint32]uint64 {
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	list := make(map[uint32]uint64, len(rs.open))
	for id, r := range rs.open {
		list[id] = uint64(len(r.mem))
	}
	return list
}

// closeAll returns when no goroutine uses any of the memory.
func (rs *regions) closeAll() {
	rs.mu.Lock()
	rs.closed = true
	open := rs.open
	rs.open = nil
	rs.mu.Unlock()
	for _, r := range open {
		r.release()
	}
}

func (r *region) ID() uint32 { return r.id }

func (r *region) Write(offset uint64, p []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return fmt.Errorf("writing to region %d: %w", r.id, transfer.ErrClosed)
	}
	if !within(transfer.Span{Offset: offset, Length: uint64(len(p))}, uint64(len(r.mem))) {
		return fmt.Errorf("writing %d bytes at %d to region %d of %d: %w", len(p), offset, r.id, len(r.mem), transfer.ErrRange)
	}
	copy(r.mem[offset:], p)
	return nil
}

// Close removes the region from the agent's list before it takes the region's lock; closeAll takes the locks in the same order.
func (r *region) Close() error {
	r.owner.mu.Lock()
	delete(r.owner.open, r.id)
	r.owner.mu.Unlock()
	r.release()
	return nil
}

func (r *region) release() {
	r.mu.Lock()
	r.mem = nil
	r.mu.Unlock()
}

// hold prevents writes to the memory, and its close, until letGo. It returns false if the region is closed.
func (r *region) hold() bool {
	r.mu.RLock()
	if r.mem == nil {
		r.mu.RUnlock()
		return false
	}
	return true
}

func (r *region) letGo() { r.mu.RUnlock() }

// view returns the memory of a span, which may be used only between hold and letGo. It returns false if there is no such region
// or span.
func (r *region) view(s transfer.Span) ([]byte, bool) {
	if r == nil || !r.hold() {
		return nil, false
	}
	defer r.letGo()
	if !within(s, uint64(len(r.mem))) {
		return nil, false
	}
	return r.mem[s.Offset:][:s.Length:s.Length], true
}

// copyOut copies from the region into p. It returns an error if the region has been closed, or the range is outside of it.
func (r *region) copyOut(p []byte, offset uint64) bool {
	if !r.hold() {
		return false
	}
	defer r.letGo()
	if !within(transfer.Span{Offset: offset, Length: uint64(len(p))}, uint64(len(r.mem))) {
		return false
	}
	copy(p, r.mem[offset:])
	return true
}

// within reports whether a span lies inside of size bytes, without overflowing.
func within(s transfer.Span, size uint64) bool {
	return s.Offset <= size && s.Length <= size-s.Offset
}
