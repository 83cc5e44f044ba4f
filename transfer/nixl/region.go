//go:build nixl && cgo && linux

package nixl

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"syscall"

	"github.com/tandem-serving/tandem/transfer"
)

// regions has the memory that an agent has registered.
type regions struct {
	mu     sync.Mutex
	open   map[uint32]*region
	sorted []extent // the extents of open, by address
	next   uint32
	closed bool
}

// region implements transfer.Region.
type region struct {
	id    uint32
	owner *Transport
	where extent

	ready bool // the library knows it; regions.mu guards it

	mu  sync.Mutex
	mem []byte // nil once closed
}

// Alloc returns memory that can be registered: zeros, outside the Go heap, in whole pages. free frees it after Close has
// returned without an error; before, it returns an error, because a peer that reads unmapped memory crashes this process.
// Freeing again does nothing.
// Errors: transfer.ErrInvalid for no bytes, and those of the system.
func (t *Transport) Alloc(bytes int) (mem []byte, free func() error, err error) {
	if bytes <= 0 {
		return nil, nil, fmt.Errorf("allocating %d bytes: %w: want more than none", bytes, transfer.ErrInvalid)
	}
	if mem, err = mapAnonymous(bytes); err != nil {
		return nil, nil, err
	}
	return mem, t.freer(mem), nil
}

// freer returns a function that unmaps memory, once.
func (t *Transport) freer(mem []byte) func() error {
	var mu sync.Mutex
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		if mem == nil {
			return nil
		}
		if !t.destroyed.Load() {
			return fmt.Errorf("freeing memory: %w: close the transport first, and if that failed, keep it", transfer.ErrInvalid)
		}
		gone := mem
		mem = nil
		return syscall.Munmap(gone)
	}
}

// Register implements transfer.Transport. The memory must lie outside the Go heap, such as that of Alloc, and has to stay
// mapped until Close has returned without an error. Every holder of the metadata can also write to it: NIXL has no read-only
// access. Errors: transfer.ErrInvalid for no bytes, and for memory that overlaps a registered region; ErrNotSupported;
// ErrClosed; a *CallError; context.DeadlineExceeded if the library hangs.
func (t *Transport) Register(mem []byte) (transfer.Region, error) {
	r, err := t.register(mem)
	if err != nil {
		return nil, fmt.Errorf("registering memory: %w", err)
	}
	return r, nil
}

func (t *Transport) register(mem []byte) (*region, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("%w: no bytes", transfer.ErrInvalid)
	}
	e := extentOf(mem)
	r, err := t.memory.add(t, mem, e)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.stall)
	defer cancel()
	if err := t.agent.do(ctx, func() error { return t.enroll(e) }); err != nil {
		t.memory.remove(r.id, e) // its number is not used again
		return nil, err
	}
	t.memory.announce(r)
	return r, nil
}

// enroll registers memory with the library, and updates the metadata. It runs in the agent's goroutine.
func (t *Transport) enroll(e extent) error {
	if err := t.agent.lib.register(t.agent.agent, e); err != nil {
		return err
	}
	return t.refresh()
}

// refresh updates the library's part of the metadata. It runs in the agent's goroutine.
func (t *Transport) refresh() error {
	blob, err := t.agent.lib.metadata(t.agent.agent)
	if err != nil {
		return err
	}
	t.blob.Store(&blob)
	return nil
}

// add gives memory a number, if it may be registered.
func (rs *regions) add(owner *Transport, mem []byte, e extent) (*region, error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.closed {
		return nil, transfer.ErrClosed
	}
	if len(rs.open) == maxRegions || rs.next == math.MaxUint32 {
		return nil, fmt.Errorf("%w: %d regions open, %d numbers used", transfer.ErrNotSupported, len(rs.open), rs.next)
	}
	at, _ := slices.BinarySearchFunc(rs.sorted, e.address, byAddress)
	if at < len(rs.sorted) && rs.sorted[at].overlaps(e) || at > 0 && rs.sorted[at-1].overlaps(e) {
		return nil, fmt.Errorf("%w: it overlaps memory that is registered", transfer.ErrInvalid)
	}
	r := &region{id: rs.next, owner: owner, where: e, mem: mem}
	rs.open[r.id] = r
	rs.sorted = slices.Insert(rs.sorted, at, e)
	rs.next++
	return r, nil
}

func (e extent) overlaps(o extent) bool {
	return e.address < o.address+o.length && o.address < e.address+e.length
}

func byAddress(e extent, address uint64) int {
	switch {
	case e.address < address:
		return -1
	case e.address > address:
		return 1
	}
	return 0
}

// remove removes a region. It returns false if the region had been removed before.
func (rs *regions) remove(id uint32, e extent) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if _, ok := rs.open[id]; !ok {
		return false
	}
	delete(rs.open, id)
	if at, ok := slices.BinarySearchFunc(rs.sorted, e.address, byAddress); ok {
		rs.sorted = slices.Delete(rs.sorted, at, at+1)
	}
	return true
}

// announce adds a region to the metadata.
func (rs *regions) announce(r *region) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r.ready = true
}

// extents returns the regions of the metadata.
func (rs *regions) extents() map[uint32]extent {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	list := make(map[uint32]extent, len(rs.open))
	for id, r := range rs.open {
		if r.ready {
			list[id] = r.where
		}
	}
	return list
}

// close closes all regions, and refuses new ones.
func (rs *regions) close() {
	rs.mu.Lock()
	rs.closed = true
	open := rs.open
	rs.open, rs.sorted = nil, nil
	rs.mu.Unlock()
	for _, r := range open {
		r.release()
	}
}

// ID implements transfer.Region.
func (r *region) ID() uint32 { return r.id }

// Write implements transfer.Region with one difference: it cannot exclude reads by NIXL peers at the same time.
func (r *region) Write(offset uint64, p []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return fmt.Errorf("writing to region %d: %w", r.id, transfer.ErrClosed)
	}
	if size := uint64(len(r.mem)); offset > size || uint64(len(p)) > size-offset {
		return fmt.Errorf("writing %d bytes at %d to region %d of %d: %w", len(p), offset, r.id, size, transfer.ErrRange)
	}
	copy(r.mem[offset:], p)
	return nil
}

// Close removes the region from the metadata that is exported from now on. It revokes nothing: over TCP and shared memory a
// peer with earlier metadata can continue to read, which cannot be detected. So the memory has to stay mapped until the
// transport's Close.
func (r *region) Close() error {
	if !r.owner.memory.remove(r.id, r.where) {
		return nil
	}
	r.release()
	if err := r.owner.withdraw(r.where); err != nil {
		return fmt.Errorf("closing region %d: %w", r.id, err)
	}
	return nil
}

// withdraw undoes enroll. If the transport has been closed, there is nothing to undo.
func (t *Transport) withdraw(e extent) error {
	ctx, cancel := context.WithTimeout(context.Background(), t.stall)
	defer cancel()
	err := t.agent.do(ctx, func() error {
		if err := t.agent.lib.deregister(t.agent.agent, e); err != nil {
			return err
		}
		return t.refresh()
	})
	if errors.Is(err, transfer.ErrClosed) {
		return nil
	}
	return err
}

func (r *region) release() {
	r.mu.Lock()
	r.mem = nil
	r.mu.Unlock()
}
