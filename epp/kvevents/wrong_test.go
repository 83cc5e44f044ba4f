package kvevents

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/epp/kvindex"
)

// TestHowLongEntriesAreWrong: an engine without replay stores and drops blocks, one message each, and restarts now and then, and some of its
// messages are lost. The index has a block that the engine has not only until the next message arrives. How long that was is logged, in messages
// of the engine.
func TestHowLongEntriesAreWrong(t *testing.T) {
	const messages, capacity = 30_000, 40
	random := rand.New(rand.NewPCG(4, 2))
	e := newEngine()
	p := NewPushed(e.Stream)
	var cached []uint64       // by the engine, the oldest first
	told := map[uint64]bool{} // names that the engine has, or that the index may have
	wrong := map[uint64]int{} // since which message, by name
	var lasted []int          // messages, of entries that were wrong
	losing, longest := 0, 0   // messages that were lost in a row
	number, name := uint64(0), uint64(1000)
	for i := range messages {
		var event any
		switch restart := number > 100 && random.IntN(500) == 0; {
		case restart:
			p.Connected()
			number, cached = 0, nil
			fallthrough
		case len(cached) < capacity || len(cached) < capacity*2 && random.IntN(2) == 0:
			name++
			event = dict{"type", "BlockStored", "block_hashes", list{name}, "parent_block_hash", nil,
				"token_ids", []uint32{uint32(name), 1, 2, 3}, "block_size", size}
			cached = append(cached, name)
			told[name] = true
		default:
			k := random.IntN(len(cached) / 4)
			event = removed(cached[k])
			cached = slices.Delete(cached, k, k+1)
		}
		if lost := random.IntN(60) == 0 || losing > 0 && random.IntN(2) == 0; lost {
			losing++
			longest = max(longest, losing)
		} else {
			losing = 0
			if err := p.Message(binary.BigEndian.AppendUint64(nil, number), pack(nil, list{1.5, list{event}, 0})); err != nil {
				t.Fatal(err)
			}
		}
		number++
		has := 0
		for n := range told {
			isCached := slices.Contains(cached, n)
			if !e.Holder.Has(kvindex.GPU, n) {
				if since, ok := wrong[n]; ok {
					lasted = append(lasted, i-since)
					delete(wrong, n)
				}
				if !isCached {
					delete(told, n)
				}
				continue
			}
			has++
			if _, ok := wrong[n]; !ok && !isCached {
				wrong[n] = i
			}
		}
		if has != e.Holder.Len() {
			t.Fatalf("%d blocks of %d are known by their names", has, e.Holder.Len())
		}
		if losing == 0 && len(wrong) > 0 {
			t.Fatalf("message %d has arrived, and %d entries are wrong", i, len(wrong))
		}
	}
	slices.Sort(lasted)
	n := len(lasted)
	if n < 100 || e.Counts.Lost.Load() < messages/50 || e.Counts.Restarts.Load() < 10 {
		t.Fatalf("%d entries were wrong, %d messages lost, %d restarts: too few", n, e.Counts.Lost.Load(), e.Counts.Restarts.Load())
	}
	t.Logf("of %d messages %d were lost, at most %d in a row, and the engine restarted %d times: %d entries were wrong, for p50 %d, p99 %d, at most %d messages",
		messages, e.Counts.Lost.Load(), longest, e.Counts.Restarts.Load(), n, lasted[n/2], lasted[n*99/100], lasted[n-1])
	if lasted[n-1] > longest {
		t.Errorf("an entry was wrong for %d messages, though no more than %d were lost in a row", lasted[n-1], longest)
	}
}
