package flow

// heap is a binary heap. Its elements know their index in it, so that any of them can be removed in O(log n).
type heap[T any] struct {
	all   []T
	less  func(a, b T) bool
	place func(element T, index int) // tells an element its index; -1 = it is not in the heap
}

func (h *heap[T]) len() int { return len(h.all) }

// top returns the first element. There must be one.
func (h *heap[T]) top() T { return h.all[0] }

func (h *heap[T]) push(element T) {
	h.all = append(h.all, element)
	h.place(element, len(h.all)-1)
	h.up(len(h.all) - 1)
}

func (h *heap[T]) remove(i int) {
	last := len(h.all) - 1
	h.swap(i, last)
	h.place(h.all[last], -1)
	var zero T
	h.all[last] = zero
	if h.all = h.all[:last]; i < last {
		h.fix(i)
	}
	if len(h.all) == 0 {
		h.all = nil // a flow that once had a long queue keeps no memory for it
	}
}

// fix restores the order after the element at an index has changed.
func (h *heap[T]) fix(i int) {
	if !h.down(i) {
		h.up(i)
	}
}

func (h *heap[T]) swap(i, j int) {
	if i == j {
		return
	}
	h.all[i], h.all[j] = h.all[j], h.all[i]
	h.place(h.all[i], i)
	h.place(h.all[j], j)
}

func (h *heap[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(h.all[i], h.all[parent]) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

// down reports whether it moved the element.
func (h *heap[T]) down(i int) (moved bool) {
	for {
		child := 2*i + 1
		if child >= len(h.all) {
			return moved
		}
		if right := child + 1; right < len(h.all) && h.less(h.all[right], h.all[child]) {
			child = right
		}
		if !h.less(h.all[child], h.all[i]) {
			return moved
		}
		h.swap(i, child)
		i, moved = child, true
	}
}
