package continuation

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// The members of an event of a completion, in the order of eventTable.
const (
	eID = iota
	eObject
	eCreated
	eChoice
	eIndex
	eText
	eIDs
	ePromptIDs
	eFinish
	eStop
	eOffsets
	eTokens
	ePromptTokens
	eTotal
	eCompletion
	eCached
	eLogprobs
	eTokenLogprobs
	eTopLogprobs
	eFingerprint
	eDelta
)

var eventTable = body.NewTable(
	body.Want{Path: "id"},
	body.Want{Path: "object"},
	body.Want{Path: "created"},
	body.Want{Path: "choices.*"},
	body.Want{Path: "choices.*.index"},
	body.Want{Path: "choices.*.text"},
	body.Want{Path: "choices.*.token_ids"},
	body.Want{Path: "choices.*.prompt_token_ids"},
	body.Want{Path: "choices.*.finish_reason"},
	body.Want{Path: "choices.*.stop_reason"},
	body.Want{Path: "choices.*.logprobs.text_offset"},
	body.Want{Path: "choices.*.logprobs.tokens"},
	body.Want{Path: "usage.prompt_tokens"},
	body.Want{Path: "usage.total_tokens"},
	body.Want{Path: "usage.completion_tokens"},
	body.Want{Path: "usage.prompt_tokens_details.cached_tokens"},
	body.Want{Path: "choices.*.logprobs"},
	body.Want{Path: "choices.*.logprobs.token_logprobs"},
	body.Want{Path: "choices.*.logprobs.top_logprobs"},
	body.Want{Path: "system_fingerprint"},
	body.Want{Path: "choices.*.delta"},
)

// readFirst keeps what later events of other engines get: the id and the time of the first one.
func (s *Stream) readFirst(data []byte) {
	s.id = []byte{}
	if s.scan.Scan(eventTable, body.Limits{}, data) != nil {
		s.giveUp(Unreadable)
		return
	}
	s.id, s.created = bytes.Clone(s.member(data, eID)), bytes.Clone(s.member(data, eCreated))
	if s.id == nil || s.created == nil {
		s.id = []byte{}
		s.giveUp(Unreadable)
	}
}

// member returns a member of the event that was scanned last; nil if it has none.
func (s *Stream) member(data []byte, want int) []byte {
	m, ok := s.scan.Find(want)
	if !ok || m.Value.End < 0 {
		return nil
	}
	return data[m.Value.Start:m.Value.End]
}

// number returns a count of the event that was scanned last, 0 if it has none.
func (s *Stream) number(data []byte, want int) int64 {
	n, err := strconv.ParseInt(string(s.member(data, want)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// edit is a new value in an event.
type edit struct {
	body.Span
	value []byte
}

// rewrite makes an event of the engine that goes on into one of the first engine. It returns false if the client gets nothing of it. The
// token ids stay, for keep.
func (s *Stream) rewrite(data []byte) ([]byte, bool) {
	if s.scan.Scan(eventTable, body.Limits{}, data) != nil {
		s.giveUp(Unreadable)
		return data, true
	}
	var c change
	if _, chosen := s.scan.Find(eChoice); chosen {
		switch {
		case s.swallows && s.stopped == nil:
			return nil, false
		case s.swallows:
			c = s.stopped.ending(s.member(data, eFingerprint))
			if data = s.stopped.data; s.scan.Scan(eventTable, body.Limits{}, data) != nil {
				return nil, false // it was scanned before
			}
			s.stopped = nil
		case s.of.stops != nil:
			if c = s.lookForStops(data); s.stopped != nil {
				return nil, false
			}
		}
	}
	out, err := s.translate(data, c)
	if err != nil {
		s.broken = err
		return nil, false
	}
	return out, true
}

// change is what the event of the engine that goes on lacks besides its form.
type change struct {
	text, finish, reason []byte // new values; nil: as they are
	without              int64  // how many of its last tokens do not belong to the answer
	fingerprint          []byte // a member that it gets; nil: none
}

// translate makes the event that was scanned last into one of the first engine.
func (s *Stream) translate(data []byte, c change) ([]byte, error) {
	var edits []edit
	replace := func(want int, value []byte) {
		if m, ok := s.scan.Find(want); ok && value != nil {
			edits = append(edits, edit{m.Value, value})
		}
	}
	replace(eID, s.id)
	replace(eCreated, s.created)
	if m, ok := s.scan.Find(ePromptTokens); ok && m.Kind == body.Number {
		completion := s.number(data, eCompletion) + s.number(data, ePromptTokens) - s.tokens - c.without
		replace(ePromptTokens, strconv.AppendInt(nil, s.tokens, 10))
		replace(eCompletion, strconv.AppendInt(nil, completion, 10))
		replace(eTotal, strconv.AppendInt(nil, s.number(data, eTotal)-c.without, 10))
		cached := s.cached
		if cached < 0 {
			cached = min(s.number(data, eCached), s.tokens)
		}
		replace(eCached, strconv.AppendInt(nil, cached, 10))
	}
	if s.of.api == pd.APIChat {
		replace(eObject, chatObject)
	}
	switch choice, chosen := s.scan.Find(eChoice); {
	case !chosen:
	case s.of.api == pd.APIChat:
		made, err := s.chatChoice(data, c)
		if err != nil {
			return nil, err
		}
		edits = append(edits, edit{choice.Value, made})
	default:
		if s.count > 0 || !s.of.wants { // otherwise the client has not got the ids of the prompt, which this leg has as it is
			replace(ePromptIDs, null)
		}
		replace(eText, c.text)
		replace(eFinish, c.finish)
		replace(eStop, c.reason)
		edits = append(edits, s.listEdits(data, c.without)...)
	}
	if c.fingerprint != nil {
		end := int64(bytes.LastIndexByte(data, '}'))
		edits = append(edits, edit{body.Span{Start: end, End: end}, append([]byte(`,"system_fingerprint":`), c.fingerprint...)})
	}
	return splice(data, edits), nil
}

// listEdits moves the offsets of a completion's log probabilities, and removes what belongs to its last tokens.
func (s *Stream) listEdits(data []byte, without int64) (edits []edit) {
	for _, want := range []int{eIDs, eOffsets, eTokens, eTokenLogprobs, eTopLogprobs} {
		m, ok := s.scan.Find(want)
		if !ok || m.Kind != body.Array {
			continue
		}
		list := data[m.Value.Start:m.Value.End]
		if without > 0 {
			list = withoutLast(list, without)
		}
		if want == eOffsets {
			list = moveOffsets(list, s.offset)
		}
		if want == eOffsets || without > 0 {
			edits = append(edits, edit{m.Value, list})
		}
	}
	return edits
}

// withoutLast returns a list without its last n elements.
func withoutLast(list []byte, n int64) []byte {
	var scan body.Scanner
	if scan.Scan(textsTable, body.Limits{}, list) != nil {
		return list
	}
	all := scan.Members()
	keep := len(all) - int(n)
	if keep <= 0 {
		return []byte("[]")
	}
	return append(bytes.Clone(list[:all[keep-1].Value.End]), ']')
}

// splice replaces values, which do not overlap.
func splice(data []byte, edits []edit) []byte {
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(a.Start, b.Start) })
	var out []byte
	at := int64(0)
	for _, e := range edits {
		out = append(append(out, data[at:e.Start]...), e.value...)
		at = e.End
	}
	return append(out, data[at:]...)
}

var chatObject = []byte(`"chat.completion.chunk"`)

// chatChoice makes the choice of an event of chat of that of a completion, as vLLM writes it.
func (s *Stream) chatChoice(data []byte, c change) ([]byte, error) {
	or := func(want int, changed []byte) []byte {
		if changed != nil {
			return changed
		}
		if v := s.member(data, want); v != nil {
			return v
		}
		return null
	}
	finish := or(eFinish, c.finish)
	out := append(append([]byte(`{"index":`), or(eIndex, nil)...), `,"delta":`...)
	if parsed := s.member(data, eDelta); parsed != nil {
		out = append(out, parsed...)
	} else if text := or(eText, c.text); s.sparse && string(text) == `""` {
		out = append(out, "{}"...)
	} else {
		out = append(append(append(out, `{"content":`...), text...), '}')
	}
	out = append(out, `,"logprobs":`...)
	scores := or(eLogprobs, nil)
	if !bytes.Equal(scores, null) {
		var err error
		if scores, err = chatLogprobs(scores, s.of.top, int(c.without)); err != nil {
			return nil, err
		}
	}
	out = append(append(append(out, scores...), `,"finish_reason":`...), finish...)
	if !bytes.Equal(finish, null) {
		out = append(append(out, `,"stop_reason":`...), or(eStop, c.reason)...)
	}
	ids := or(eIDs, nil)
	if c.without > 0 {
		ids = withoutLast(ids, c.without)
	}
	return append(append(append(out, `,"token_ids":`...), ids...), '}'), nil
}

// textOffset returns where the text of the next token begins, in characters, by the log probabilities of the last event.
func textOffset(data []byte) int64 {
	var scan body.Scanner
	if len(data) == 0 || scan.Scan(eventTable, body.Limits{}, data) != nil {
		return 0
	}
	offsets, ok := scan.Find(eOffsets)
	tokens, also := scan.Find(eTokens)
	if !ok || !also || offsets.Kind != body.Array || tokens.Kind != body.Array {
		return 0
	}
	text := data[offsets.Value.Start+1 : offsets.Value.End-1]
	last, err := strconv.ParseInt(string(bytes.TrimSpace(text[bytes.LastIndexByte(text, ',')+1:])), 10, 64)
	if err != nil {
		return 0
	}
	return last + int64(utf8.RuneCountInString(lastText(data[tokens.Value.Start:tokens.Value.End])))
}

var textsTable = body.NewTable(body.Want{Path: "*"})

// lastText returns the last element of a list of strings.
func lastText(list []byte) string {
	var scan body.Scanner
	if scan.Scan(textsTable, body.Limits{}, list) != nil {
		return ""
	}
	m, ok := scan.Find(0)
	if !ok {
		return ""
	}
	text, err := body.Text(list[m.Value.Start:m.Value.End])
	if err != nil {
		return ""
	}
	return text
}

// moveOffsets adds to each number of a list.
func moveOffsets(list []byte, by int64) []byte {
	var out []byte
	out = append(out, '[')
	for i, one := range bytes.Split(list[1:len(list)-1], comma) {
		n, err := strconv.ParseInt(string(bytes.TrimSpace(one)), 10, 64)
		if err != nil {
			return list
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, n+by, 10)
	}
	return append(out, ']')
}
