package recent

import "sync/atomic"

// queue keeps entries in the order in which they came.
type queue[E Entry] struct {
	count, bytes int // limits
	entries      []kept[E]
	taken        int // bytes of entries
}

// kept is an entry with its place in the order of all entries of the process.
type kept[E Entry] struct {
	entry  E
	size   int
	number int64
}

// numbers orders entries of both kinds.
var numbers atomic.Int64

// add adds an entry. It drops the oldest ones above the limits, but never the entry itself.
func (q *queue[E]) add(e E) {
	k := kept[E]{e, e.Size(), numbers.Add(1)}
	q.taken += k.size
	q.entries = append(q.entries, k)
	for len(q.entries) > 1 && (len(q.entries) > q.count || q.taken > q.bytes) {
		q.taken -= q.entries[0].size
		q.entries[0] = kept[E]{} // the memory of the entry is not needed until the slice moves
		q.entries = q.entries[1:]
	}
}
