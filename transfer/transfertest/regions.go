package transfertest

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
)

func numbersRegions(t *testing.T, k Kind) {
	owner := k.Start(t, "owner")
	first, _ := k.register(t, owner, 10, 1)
	second, _ := k.register(t, owner, 10, 2)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	third, _ := k.register(t, owner, 10, 3)
	if got := [3]uint32{first.ID(), second.ID(), third.ID()}; got != [3]uint32{0, 1, 2} {
		t.Errorf("regions are numbered %v, want 0, 1, 2: no number twice", got)
	}
	for name, empty := range map[string][]byte{"nil": nil, "empty": {}} {
		if _, err := owner.Register(empty); !errors.Is(err, transfer.ErrInvalid) {
			t.Errorf("registering %s memory: error %v, want %v", name, err, transfer.ErrInvalid)
		}
	}
}

func writesToRegion(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	region, mem := k.register(t, owner, 10, 1)
	peer := load(t, reader, owner)
	want := bytes.Clone(mem)
	copy(want[3:], "abc")
	if err := region.Write(3, []byte("abc")); err != nil {
		t.Fatal(err)
	}
	wantErr(t, region.Write(8, []byte("abc")), transfer.ErrRange)
	wantErr(t, region.Write(^uint64(0), []byte("abc")), transfer.ErrRange)
	mustRead(t, reader, peer, []transfer.Span{span(0, 0, 10)}, want)
}

func closesRegion(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	first, _ := k.register(t, owner, 10, 1)
	_, second := k.register(t, owner, 10, 2)
	peer := load(t, reader, owner)
	for range 2 {
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, first.Write(0, []byte{1}), transfer.ErrClosed)
	if !k.can(Revocation) {
		load(t, reader, owner)
	}
	wantErr(t, tryRead(t, reader, peer, span(1, 0, 1), span(0, 0, 1)), transfer.ErrRange)
	mustRead(t, reader, peer, []transfer.Span{span(1, 0, 10)}, nil, second)
}

func readsWhatWasRegisteredLater(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	peer := load(t, reader, owner)
	_, mem := k.register(t, owner, 10, 1)
	wantErr(t, tryRead(t, reader, peer, span(0, 0, 10)), transfer.ErrRange)
	load(t, reader, owner)
	mustRead(t, reader, peer, []transfer.Span{span(0, 0, 10)}, mem)
}

// excludesReadsDuringWrite fails by the race detector, by bytes that were never written, or by a part of a write. The race
// detector does not see reads of the kernel, and only a page is always read at once, so a page must have the bytes of one write.
func excludesReadsDuringWrite(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	for name, c := range map[string]struct{ size, reads int }{"page": {4 << 10, 3000}, "more": {64 << 10, 100}} {
		t.Run(name, func(t *testing.T) {
			region, mem := k.register(t, owner, c.size, 1)
			if err := region.Write(0, make([]byte, len(mem))); err != nil {
				t.Fatal(err)
			}
			peer := load(t, reader, owner)
			stop := writeRepeatedly(t, region, c.size)
			defer stop()
			spans := []transfer.Span{span(region.ID(), 0, uint64(c.size))}
			into := buffers(spans)
			for range c.reads {
				if err := reader.Read(within(t), peer, spans, into, nil); err != nil {
					t.Fatal(err)
				}
				ones, zeros := bytes.Count(into[0], []byte{1}), bytes.Count(into[0], []byte{0})
				if ones+zeros != c.size {
					t.Fatalf("%d bytes that were never written", c.size-ones-zeros)
				}
				if name == "page" && ones != 0 && zeros != 0 {
					t.Fatalf("%d bytes of one write and %d of another", ones, zeros)
				}
			}
		})
	}
}

// writeRepeatedly fills a region with ones and zeros in turn until stop is called.
func writeRepeatedly(t *testing.T, region transfer.Region, size int) (stop func()) {
	done := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		ones, zeros := bytes.Repeat([]byte{1}, size), make([]byte, size)
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := errors.Join(region.Write(0, ones), region.Write(0, zeros)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	return func() {
		close(done)
		writer.Wait()
	}
}

// endsReadsOfClosingRegion uses the memory for something else after Close, without a lock. The race detector, or the bytes, would
// show a read that still used it.
func endsReadsOfClosingRegion(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	for range 20 {
		region, mem := k.register(t, owner, 2*k.PartBytes, 1)
		want := bytes.Clone(mem)
		peer := load(t, reader, owner)
		started := make(chan struct{}, 4)
		var readers sync.WaitGroup
		for range 4 {
			readers.Go(func() {
				spans := []transfer.Span{span(region.ID(), 0, uint64(len(want)))}
				into := buffers(spans)
				for err := error(nil); err == nil; {
					err = reader.Read(within(t), peer, spans, into, nil)
					if err == nil && !bytes.Equal(into[0], want) {
						t.Error("a read of a closing region succeeded with other bytes")
					}
					if err != nil {
						wantErr(t, err, transfer.ErrRange)
					}
					select {
					case started <- struct{}{}:
					default:
					}
				}
			})
		}
		<-started
		if err := region.Close(); err != nil {
			t.Error(err)
		}
		clear(mem)
		readers.Wait()
	}
}
