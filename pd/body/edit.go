package body

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Edit collects edits of one Body that one Scanner has scanned, and makes the edited body out of slices of the original.
// Reset begins, and may begin again. Every byte that no edit touches stays: order, white space, escapes, big integers,
// duplicate keys elsewhere. The result is valid JSON if the input is.
//
// Edits may come in any order. An edit inside a value that another edit removes or replaces has no effect. Segments returns
// an error for two edits of one member, and for a member of another body.
type Edit struct {
	body  *Body
	root  Member
	ops   []op
	cuts  []cut
	ready bool // cuts are made from ops
	size  int64
	err   error
}

type verb uint8

const (
	replacing verb = iota
	removing
	adding
)

// op is one edit as the caller requested it.
type op struct {
	verb   verb
	member Member
	name   []byte // of an added member, with quotes
	value  []byte
}

// cut is one edit of the bytes: a span, and the texts that replace it.
type cut struct {
	Span
	before, value []byte
}

// Reset begins with a body and the scanner's Root of it. Slices that Segments returned before stay valid.
func (e *Edit) Reset(b *Body, root Member) {
	clear(e.ops)
	clear(e.cuts)
	*e = Edit{body: b, root: root, ops: e.ops[:0], cuts: e.cuts[:0]}
}

// Replace replaces m's value by value, which is raw JSON.
func (e *Edit) Replace(m Member, value []byte) {
	e.add(op{verb: replacing, member: m, value: value})
}

// Remove removes m with the one comma that belongs to it: the comma before it, or the one after it if all members before it
// are removed too.
func (e *Edit) Remove(m Member) { e.add(op{verb: removing, member: m}) }

// Add appends a member to an object: the Root or a Member of Kind Object. name is written as a JSON string; value is raw
// JSON.
func (e *Edit) Add(object Member, name string, value []byte) {
	text := make([]byte, 0, len(name)+len(`,"":`))
	text = append(AppendQuoted(append(text, ','), name), ':')
	e.add(op{verb: adding, member: object, name: text, value: value})
}

func (e *Edit) add(o op) {
	e.ops = append(e.ops, o)
	e.ready = false
}

// Segments appends the edited body to dst: slices of the original and of the inserted values, without a copy.
func (e *Edit) Segments(dst [][]byte) ([][]byte, error) {
	e.compile()
	if e.err != nil {
		return dst, e.err
	}
	at := int64(0)
	for _, c := range e.cuts {
		dst = e.body.AppendSpan(dst, Span{at, c.Start})
		if len(c.before) > 0 {
			dst = append(dst, c.before)
		}
		if len(c.value) > 0 {
			dst = append(dst, c.value)
		}
		at = c.End
	}
	return e.body.AppendSpan(dst, Span{at, e.body.Len()}), nil
}

// Len returns the length of the edited body in bytes, 0 if Segments returns an error.
func (e *Edit) Len() int64 {
	e.compile()
	return e.size
}

// compile turns ops into cuts, sorted and without overlap.
func (e *Edit) compile() {
	if e.ready {
		return
	}
	e.ready, e.size, e.cuts = true, 0, e.cuts[:0]
	// Sort by place. Ops at the same place keep their order, so that members are added in the order of the calls.
	slices.SortStableFunc(e.ops, func(a, b op) int {
		return cmp.Compare(a.place(), b.place())
	})
	if e.err = e.check(); e.err != nil {
		return
	}
	for i := range e.ops {
		e.cut(i)
	}
	e.settle()
}

// place returns the offset at which an op changes the body.
func (o *op) place() int64 {
	if o.verb == adding {
		return o.member.Value.End - 1
	}
	return o.member.Value.Start
}

func (e *Edit) check() error {
	whole := e.root.Value
	if e.root.Kind == Invalid || whole.End < 0 || whole.End > e.body.Len() {
		return errors.New("editing JSON: the body is not complete")
	}
	for i, o := range e.ops {
		v := o.member.Value
		switch {
		case v.Start < whole.Start || v.End > whole.End || v.Start >= v.End:
			return fmt.Errorf("editing JSON: the member at byte %d is not of this body", v.Start)
		case o.verb == adding && o.member.Kind != Object:
			return fmt.Errorf("editing JSON: adding %s to the value at byte %d, which is no object", o.name, v.Start)
		case o.verb == removing && o.member.Object < 0:
			return errors.New("editing JSON: removing the top-level value")
		case o.verb != adding && i > 0 && e.ops[i-1].verb != adding && e.ops[i-1].member.Value.Start == v.Start:
			return fmt.Errorf("editing JSON: the member at byte %d is edited twice", v.Start)
		}
	}
	return nil
}

// cut appends the cut for the i-th op.
func (e *Edit) cut(i int) {
	o := &e.ops[i]
	m := &o.member
	switch o.verb {
	case replacing:
		e.cuts = append(e.cuts, cut{Span: m.Value, value: o.value})
	case removing:
		e.cuts = append(e.cuts, cut{Span: e.removal(i)})
	case adding:
		at := m.Value.End - 1
		name := o.name
		if e.leaves(i) == 0 {
			name = name[1:] // the object is empty, so no comma precedes the name
		}
		e.cuts = append(e.cuts, cut{Span: Span{at, at}, before: name, value: o.value})
	}
}

// removal returns the span to remove with the member of the i-th op.
func (e *Edit) removal(i int) Span {
	m := &e.ops[i].member
	leading := m.Index
	for k := range e.ops[:i] {
		if o := &e.ops[k]; o.verb == removing && o.member.Object == m.Object {
			leading--
		}
	}
	switch {
	case leading > 0:
		return Span{m.Prev, m.Value.End}
	case m.Next < 0:
		return Span{m.Key.Start, m.Value.End}
	}
	return Span{m.Key.Start, m.Next + 1}
}

// leaves returns how many members remain in the object to which the i-th op adds, at that point.
func (e *Edit) leaves(i int) int {
	object := &e.ops[i].member
	count := object.Count
	for k := range e.ops {
		switch o := &e.ops[k]; {
		case o.verb == removing && o.member.Object == object.Value.Start:
			count--
		case o.verb == adding && k < i && o.member.Value.Start == object.Value.Start:
			count++
		}
	}
	return count
}

// settle sorts the cuts, drops those inside another cut, and computes the length.
func (e *Edit) settle() {
	slices.SortStableFunc(e.cuts, func(a, b cut) int { return cmp.Compare(a.Start, b.Start) })
	kept := e.cuts[:0]
	e.size = e.body.Len()
	at := int64(0)
	for _, c := range e.cuts {
		if c.Start < at {
			continue
		}
		kept = append(kept, c)
		at = c.End
		e.size += int64(len(c.before)+len(c.value)) - c.Len()
	}
	e.cuts = kept
}
