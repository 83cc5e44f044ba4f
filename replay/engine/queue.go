package engine

import "slices"

// queue holds the waiting requests, in the order in which they run.
type queue struct {
	all  []*Request
	head int // the first one
}

func (q *queue) len() int        { return len(q.all) - q.head }
func (q *queue) first() *Request { return q.all[q.head] }
func (q *queue) push(r *Request) { q.all = append(q.all, r) }

func (q *queue) pop() {
	q.all[q.head] = nil
	if q.head++; q.head == len(q.all) {
		q.all, q.head = q.all[:0], 0
	}
}

// remove takes a request out, and reports whether it was there.
func (q *queue) remove(r *Request) bool {
	i := slices.Index(q.all[q.head:], r)
	if i < 0 {
		return false
	}
	q.all = slices.Delete(q.all, q.head+i, q.head+i+1)
	return true
}

// pushFront puts a request before all others.
func (q *queue) pushFront(r *Request) {
	if q.head == 0 { // make space for as many as wait, so that this is rare
		space := len(q.all) + 8
		q.all = append(make([]*Request, space, 2*space), q.all...)
		q.head = space
	}
	q.head--
	q.all[q.head] = r
}

// letPass has the first request wait behind those whose KV cache has arrived, which are at the front.
func (q *queue) letPass() {
	for i := q.head; i+1 < len(q.all) && q.all[i+1].arrived; i++ {
		q.all[i], q.all[i+1] = q.all[i+1], q.all[i]
	}
}
