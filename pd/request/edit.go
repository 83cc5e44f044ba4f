package request

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/pd/body"
)

// Payload is an edited body, as slices of the request's bytes and of the inserted values.
type Payload struct {
	Segments [][]byte
	Length   int64 // bytes
}

// Edit collects the changes that make the body of one leg. Every byte that no change touches stays as the client wrote it.
// Members that the table strips are removed, unless the edit sets them.
type Edit struct {
	of    *Request
	edit  body.Edit
	done  uint64 // wants that Set or Drop has handled
	wrong string // the first member that is not in the table, or whose object is not in the body
}

var errNotObject = errors.New("request body is not a JSON object")

// Edit begins an edit. It returns an error if the body is not a JSON object.
func (r *Request) Edit() (*Edit, error) {
	if r.scan.Root().Kind != body.Object {
		return nil, errNotObject
	}
	e := &Edit{of: r}
	e.edit.Reset(r.Body, r.scan.Root())
	e.single()
	return e, nil
}

// Set replaces or adds a member of the table. value is raw JSON. A member may be set or dropped once. A member below the top
// level can be set if the object that it belongs to is there.
func (e *Edit) Set(name string, value []byte) {
	want, ok := e.want(name)
	if !ok {
		return
	}
	last, found := e.of.scan.Find(want)
	if !found {
		e.add(name, value)
		return
	}
	e.edit.Replace(last, value)
	for _, m := range e.of.scan.Members() {
		if m.Want == want && m.Value != last.Value {
			e.edit.Remove(m)
		}
	}
}

// add adds a member to the object that its path names.
func (e *Edit) add(path string, value []byte) {
	object := e.of.scan.Root()
	name := path
	if dot := strings.LastIndexByte(path, '.'); dot >= 0 {
		name = path[dot+1:]
		if parent := e.of.table.index(path[:dot]); parent >= 0 {
			object, _ = e.of.scan.Find(parent)
		}
		if object.Kind != body.Object {
			e.fail(path)
			return
		}
	}
	e.edit.Add(object, name, value)
}

func (e *Edit) fail(path string) {
	if e.wrong == "" {
		e.wrong = path
	}
}

// Drop removes a member of the table if the client sent it.
func (e *Edit) Drop(name string) {
	want, ok := e.want(name)
	if !ok {
		return
	}
	e.remove(func(m int) bool { return m == want })
}

// want finds a member for Set and Drop, and marks it as handled.
func (e *Edit) want(name string) (want int, ok bool) {
	want = e.of.table.index(name)
	if want < 0 {
		e.fail(name)
		return 0, false
	}
	e.done |= 1 << want
	return want, true
}

func (e *Edit) remove(is func(want int) bool) {
	for _, m := range e.of.scan.Members() {
		if is(m.Want) {
			e.edit.Remove(m)
		}
	}
}

// Payload returns the edited body. Errors are mistakes of the caller: a member that is not in the table, or that was edited
// twice.
func (e *Edit) Payload() (Payload, error) {
	if e.wrong != "" {
		return Payload{}, fmt.Errorf("editing %s: the request's table has no such member, or the body no object for it", e.wrong)
	}
	e.remove(func(want int) bool { return e.of.table.strip[want] && e.done>>want&1 == 0 })
	segments, err := e.edit.Segments(nil)
	if err != nil {
		return Payload{}, err
	}
	return Payload{Segments: segments, Length: e.edit.Len()}, nil
}

// Local returns the body for the local engine: as the client sent it, without the stripped members.
func (r *Request) Local() (Payload, error) {
	if r.choice == 0 && !r.strips() {
		return Payload{Segments: r.Body.Segments(), Length: r.Body.Len()}, nil
	}
	e, err := r.Edit()
	if err != nil {
		return Payload{}, err
	}
	return e.Payload()
}

// strips reports whether a member must be removed. It checks every occurrence, because readers disagree on which of two
// objects of one name counts.
func (r *Request) strips() bool {
	for _, m := range r.scan.Members() {
		if r.table.strip[m.Want] {
			return true
		}
	}
	return false
}

// Has reports whether the client sent a member, whatever its value.
func (r *Request) Has(name string) bool {
	want := r.table.index(name)
	if want < 0 {
		return false
	}
	_, ok := r.scan.Find(want)
	return ok
}

// Value returns a member's value as the client wrote it; ok is false if it has none, or the table no such member.
func (r *Request) Value(name string) (raw []byte, ok bool) {
	want := r.table.index(name)
	if want < 0 {
		return nil, false
	}
	m, ok := r.scan.Find(want)
	if !ok {
		return nil, false
	}
	return r.Body.Bytes(m.Value), true
}
