package queue

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// partition is one that the group has given to this process.
type partition struct {
	unread bool  // what is committed must be read, since it is another process's, or a transaction failed
	next   int64 // the offset that is committed; -1: none
	last   int64 // the offset after those that were claimed
	done   map[int64]bool
	held   map[int64]*claim
	back   []*kgo.Record // released
	tried  map[int64]int // by offset, how often messages were claimed that are not finished, as it is committed
	paused bool
}

// claim is a message that this process holds.
type claim struct {
	record *kgo.Record
	times  int // how often it was claimed and not released, this time included
}

// low returns the lowest offset that is neither finished nor ending: what can be committed.
func (p *partition) low(ending map[int64]bool) int64 {
	low := p.last
	for offset := range p.held {
		if !ending[offset] {
			low = min(low, offset)
		}
	}
	for _, r := range p.back {
		low = min(low, r.Offset)
	}
	return low
}

// release makes a held message one that can be claimed again.
func (p *partition) release(offset int64) bool {
	c := p.held[offset]
	if c == nil {
		return false
	}
	delete(p.held, offset)
	p.back = append(p.back, c.record)
	if c.times > 1 {
		p.tried[offset] = c.times - 1
	} else {
		delete(p.tried, offset)
	}
	return true
}

// state writes what is committed with an offset: how many offsets behind it were claimed (n), which of these are finished (d) and which are held,
// and for which time (h). Offsets are relative.
func (p *partition) state(low int64, ending map[int64]bool) string {
	done := slices.Collect(maps.Keys(ending))
	for offset := range p.done {
		if offset > low {
			done = append(done, offset)
		}
	}
	done = slices.DeleteFunc(done, func(offset int64) bool { return offset < low })
	text := "n=" + strconv.FormatInt(p.last-low, 10) + ";d=" + runs(low, done)
	times := map[int][]int64{}
	for offset, c := range p.held {
		if !ending[offset] {
			times[c.times] = append(times[c.times], offset)
		}
	}
	held := text
	for _, n := range slices.Sorted(maps.Keys(times)) {
		held += ";h" + strconv.Itoa(n) + "=" + runs(low, times[n])
	}
	if len(held) > kafkaMetadata {
		return text // a message that kills its consumers is tried more often then
	}
	return held
}

// runs writes offsets as 3-5,8, relative to the first parameter.
func runs(low int64, offsets []int64) string {
	slices.Sort(offsets)
	var b strings.Builder
	for i := 0; i < len(offsets); {
		j := i
		for j+1 < len(offsets) && offsets[j+1] == offsets[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(offsets[i]-low, 10))
		if j > i {
			b.WriteString("-" + strconv.FormatInt(offsets[j]-low, 10))
		}
		i = j + 1
	}
	return b.String()
}

// restore reads what state wrote. Of another text it takes nothing: then messages may be answered again.
func (p *partition) restore(low int64, text string) {
	p.unread, p.next, p.last, p.done, p.tried = false, low, max(p.last, low), map[int64]bool{}, map[int64]int{}
	for field := range strings.SplitSeq(text, ";") {
		name, value, _ := strings.Cut(field, "=")
		times, isHeld := strings.CutPrefix(name, "h")
		n, err := strconv.Atoi(times)
		if name != "d" && (!isHeld || err != nil) {
			continue
		}
		for run := range strings.SplitSeq(value, ",") {
			from, to, isRun := strings.Cut(run, "-")
			if !isRun {
				to = from
			}
			first, err1 := strconv.ParseInt(from, 10, 64)
			last, err2 := strconv.ParseInt(to, 10, 64)
			if err1 != nil || err2 != nil || first < 0 || last-first > kafkaMetadata*kafkaWindow {
				continue
			}
			for offset := low + first; offset <= low+last; offset++ {
				if name == "d" {
					p.done[offset] = true
				} else {
					p.tried[offset] = n
				}
			}
		}
	}
	p.back = slices.DeleteFunc(p.back, func(r *kgo.Record) bool { return r.Offset < low || p.done[r.Offset] })
}
