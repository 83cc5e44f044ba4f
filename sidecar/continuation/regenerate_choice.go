package continuation

import (
	"bytes"

	"github.com/tandem-serving/tandem/pd/body"
)

// doneData is the data of the event that ends a stream of chat or completions.
const doneData = "[DONE]"

// End returns the end of a stream of chat or completions that has broken off after all else had been sent; nil if it lacks more.
func (r *Regeneration) End() []byte {
	if !r.complete() {
		return nil
	}
	return []byte(dataStart + doneData + dataEnd)
}

// complete reports whether the client has all of a stream of chat or completions but its end.
func (r *Regeneration) complete() bool { return r.finished && (r.counted || !r.asksUsage()) }

// asksUsage reports whether the request asks for its usage at the end of the stream.
func (r *Regeneration) asksUsage() bool {
	var scan body.Scanner
	if scan.Scan(regenerableTable, body.Limits{}, bytes.Join(r.leg.Segments, nil)) != nil {
		return false
	}
	usage, _ := scan.Find(gUsage)
	return usage.Kind == body.True
}

// toolCall is a tool call of an event: the element of tool_calls, and its members.
type toolCall struct {
	of                                     body.Member
	index, id, kind, function, name, input body.Member
}

// readChoice reads an event of chat or completions. Its pieces are in the order in which an engine that sends one event for each token sends
// them: a busy one joins them.
func (r *Regeneration) readChoice(data []byte, choices body.Member) bool {
	if choices.Kind != body.Array || choices.Count > 1 {
		return false
	}
	if choices.Count == 0 {
		usage, ok := r.scan.Find(dUsage)
		r.say(data, usage, -1)
		return ok
	}
	members := 0
	for _, want := range []int{dRole, dReasoning, dReasoningContent, dContent, dCompletion} {
		m, ok := r.scan.Find(want)
		if !ok {
			continue
		}
		if want != dCompletion {
			members++
		}
		switch {
		case m.Kind == body.Null:
		case m.Kind != body.String:
			return false
		case want == dRole:
			r.say(data, m, -1, m.Value)
		default:
			r.sayText(data, m, -1)
		}
	}
	if calls, ok := r.scan.Find(dCalls); ok {
		members++
		if calls.Kind == body.Array && !r.readCalls(data, calls) || calls.Kind != body.Array && calls.Kind != body.Null {
			return false
		}
	}
	if delta, ok := r.scan.Find(dChoiceDelta); ok && (delta.Kind != body.Object || delta.Count != members) {
		return false // what is not known could be sent twice
	}
	if finish, ok := r.scan.Find(dFinish); ok && finish.Kind == body.String {
		stop, _ := r.scan.Find(dStop)
		r.say(data, finish, -1, finish.Value, stop.Value)
	}
	for _, want := range []int{dTokenIDs, dScores, dScoredTokens} {
		if m, ok := r.scan.Find(want); ok && m.Kind == body.Array {
			r.scored = max(r.scored, int64(m.Count))
		}
	}
	return true
}

// readCalls reads the tool calls of an event, each of which may have a name, with its id and type, or a part of its arguments, or both.
func (r *Regeneration) readCalls(data []byte, list body.Member) bool {
	for _, m := range r.scan.Members() {
		if m.Want == dCall {
			r.calls = append(r.calls, toolCall{of: m})
			continue
		}
		if len(r.calls) == 0 {
			continue // a member before the list
		}
		c := &r.calls[len(r.calls)-1]
		switch m.Want {
		case dCallIndex:
			c.index = m
		case dCallID:
			c.id = m
		case dCallType:
			c.kind = m
		case dCallFunction:
			c.function = m
		case dCallName:
			c.name = m
		case dCallArguments:
			c.input = m
		}
	}
	if len(r.calls) != list.Count {
		return false
	}
	for i := range r.calls {
		c := &r.calls[i]
		if !c.known() {
			return false
		}
		if c.id.Kind == body.String || c.kind.Kind == body.String || c.name.Kind == body.String {
			r.say(data, c.of, i, c.index.Value, c.kind.Value, c.name.Value)
		}
		if c.input.Kind == body.String {
			r.sayText(data, c.input, i, c.index.Value)
		}
	}
	return true
}

// known reports whether a tool call has an index, and nothing that is not known.
func (c *toolCall) known() bool {
	present := func(members ...body.Member) (n int) {
		for _, m := range members {
			if m.Kind != body.Invalid {
				n++
			}
		}
		return n
	}
	switch {
	case c.of.Kind != body.Object || c.index.Kind != body.Number || c.of.Count != present(c.index, c.id, c.kind, c.function):
		return false
	case c.function.Kind != body.Object:
		return c.function.Kind == body.Invalid || c.function.Kind == body.Null
	}
	return c.function.Count == present(c.name, c.input)
}

// say adds a piece that is no text. The values tell it from others of its kind.
func (r *Regeneration) say(data []byte, m body.Member, call int, values ...body.Span) {
	r.pieces = append(r.pieces, piece{key: r.hash(data, m.Want, values), of: m, call: call})
}

// sayText adds a text, unless it is empty: how many empty ones there are is not part of the answer.
func (r *Regeneration) sayText(data []byte, m body.Member, call int, values ...body.Span) {
	m.Value.Start++
	m.Value.End--
	if m.Value.Len() > 0 {
		r.pieces = append(r.pieces, piece{key: r.hash(data, m.Want, values), of: m, isText: true, call: call})
	}
}

func (r *Regeneration) hash(data []byte, want int, values []body.Span) uint64 {
	h := &r.keyHash
	h.Reset()
	_ = h.WriteByte(byte(want))
	for _, v := range values {
		_, _ = h.Write(data[v.Start:v.End])
		_ = h.WriteByte(',')
	}
	return h.Sum64()
}

// cuts returns the edits that remove what the client has from an event: its first pieces, and the first bytes of the next one's text.
func (r *Regeneration) cuts(data []byte, had int, skip int64) (edits []edit) {
	calls := false
	cut := func(p piece, bytes int64) {
		if p.call >= 0 {
			calls = true
			return
		}
		edits = append(edits, edit{Span: body.Span{Start: p.of.Value.Start, End: p.of.Value.Start + bytes}})
	}
	for _, p := range r.pieces[:had] {
		cut(p, p.of.Value.Len())
	}
	if skip > 0 {
		cut(r.pieces[had], skip)
	}
	if calls {
		edits = append(edits, r.cutCalls(data, had, skip))
	}
	return edits
}

// cutCalls is cuts for the list of tool calls, of which the client has the beginning.
func (r *Regeneration) cutCalls(data []byte, had int, skip int64) edit {
	var left []byte
	whole := -1 // the last call of which the client has nothing
	for _, p := range r.pieces[had:] {
		switch {
		case p.call < 0 || p.call == whole:
		case !p.isText:
			whole = p.call
			left = append(append(left, data[p.of.Value.Start:p.of.Value.End]...), ',')
		default:
			index := r.calls[p.call].index.Value
			left = append(append(append(left, `{"index":`...), data[index.Start:index.End]...), `,"function":{"arguments":"`...)
			left = append(append(left, data[p.of.Value.Start+skip:p.of.Value.End]...), `"}},`...)
		}
		skip = 0
	}
	list, _ := r.scan.Find(dCalls)
	switch {
	case len(left) > 0:
		left[len(left)-1] = ']'
		return edit{list.Value, append([]byte{'['}, left...)}
	case list.Prev >= 0:
		return edit{Span: body.Span{Start: list.Prev, End: list.Value.End}}
	case list.Next >= 0:
		return edit{Span: body.Span{Start: list.Key.Start, End: list.Next + 1}}
	}
	return edit{Span: body.Span{Start: list.Key.Start, End: list.Value.End}}
}
