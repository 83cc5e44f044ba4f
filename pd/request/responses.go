package request

import (
	"sync"

	"github.com/tandem-serving/tandem/pd/body"
)

// boundResponse reports whether a request of the responses API needs more of its engine than one prompt and its answer:
//   - a background answer, or an earlier one to continue, which only the engine that stores it knows,
//   - automatic truncation, which in some versions of vLLM depends on the limit, so that prefill, whose limit is 1, would
//     compute another prompt,
//   - tools that the engine runs itself: it then computes several prompts for one request.
func (r *Request) boundResponse() bool {
	if !r.kind(wBackground, body.False) || !r.kind(wPrevious) || r.builtinTools() {
		return true
	}
	m, ok := r.scan.Find(wTruncation)
	return ok && m.Kind != body.Null && r.text(m) != "disabled"
}

// toolTable finds the types of tools.
var (
	toolTable    = body.NewTable(body.Want{Path: "*.type"})
	toolScanners = sync.Pool{New: func() any { return new(body.Scanner) }}
)

// builtinTools reports whether there may be a tool that is not a function, which the client runs.
func (r *Request) builtinTools() bool {
	m, ok := r.scan.Find(wTools)
	if !ok || m.Kind != body.Array || m.Count == 0 {
		return false // without tools, or refused by every engine
	}
	s := toolScanners.Get().(*body.Scanner)
	defer toolScanners.Put(s)
	s.Reset(toolTable, body.Limits{}, nil)
	tools := r.Body.Bytes(m.Value)
	if _, err := s.Write(tools); err != nil {
		return true // more tools than a scan finds
	}
	for _, kind := range s.Members() {
		if text, err := body.Text(tools[kind.Value.Start:kind.Value.End]); err != nil || text != "function" {
			return true
		}
	}
	return len(s.Members()) < m.Count
}

// text returns the text of a member, "" if it is no string.
func (r *Request) text(m body.Member) string {
	text, err := body.Text(r.Body.Bytes(m.Value))
	if err != nil {
		return ""
	}
	return text
}
