package request

import (
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// promptWants are the members that hold the prompts of APIs that take several.
var promptWants = map[pd.API][]int{
	pd.APICompletions: {wPrompt},
	pd.APISGLang:      {wText, wInputIDs},
}

// idWants are the members that hold prompts in token ids. SGLang takes those of a chat in place of its messages.
var idWants = map[pd.API]int{
	pd.APICompletions: wPrompt,
	pd.APISGLang:      wInputIDs,
	pd.APIChat:        wInputIDs,
}

// OnlyIDs reports whether prompts in token ids have nothing but ids in them, as body.OnlyIDs says. It is true if the request has no
// such prompts.
func (r *Request) OnlyIDs() bool {
	want, ok := idWants[r.API]
	if !ok {
		return true
	}
	m, ok := r.scan.Find(want)
	switch {
	case !ok, m.Kind != body.Array, want == wPrompt && m.First == body.String: // texts
		return true
	}
	return r.Body.OnlyIDs(m.Value)
}

// maxPrompts is the most prompts of a request that Prompts counts.
const maxPrompts = 1024

// Prompts returns how many prompts the request has, and whether one of them is empty: some engines end when they compute one.
// ok is false if the prompts cannot be counted, because they are too many or not of one kind. APIs that take one prompt have
// one, which is not looked at.
func (r *Request) Prompts() (n int, empty, ok bool) {
	wants := promptWants[r.API]
	if wants == nil {
		return 1, false, true
	}
	for _, want := range wants {
		m, found := r.scan.Find(want)
		if !found || m.Kind == body.Null {
			continue
		}
		if n > 0 || empty {
			return 0, false, false // text and token ids at once
		}
		switch m.Kind {
		case body.String:
			n, empty = 1, m.Value.End-m.Value.Start == 2
		case body.Array:
			if m.Count == 0 || m.First == body.Number {
				n, empty = 1, m.Count == 0
				break
			}
			if empty, ok = r.emptyElement(m); !ok {
				return 0, false, false
			}
			n = m.Count
		default:
			return 0, false, false
		}
	}
	return n, empty, n > 0
}

// elementTable finds the elements of a list.
var elementTable = body.NewTable(body.Want{Path: "*"})

// emptyElement reports whether a list of prompts has an empty one.
func (r *Request) emptyElement(list body.Member) (empty, ok bool) {
	if list.Count > maxPrompts {
		return false, false
	}
	s := toolScanners.Get().(*body.Scanner)
	defer toolScanners.Put(s)
	s.Reset(elementTable, body.Limits{}, nil)
	text := r.Body.Bytes(list.Value)
	if _, err := s.Write(text); err != nil {
		return false, false
	}
	for _, m := range s.Members() {
		switch {
		case m.Kind != list.First: // texts and token ids at once
			return false, false
		case m.Kind == body.String:
			empty = empty || m.Value.End-m.Value.Start == 2
		case m.Kind == body.Array:
			empty = empty || m.Count == 0
		default:
			return false, false
		}
	}
	return empty, len(s.Members()) == list.Count
}
