package stack

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"sync"
)

// maxLine is the length at which a line of output is cut, in bytes. With the number of lines, it bounds what is stored of a
// program that writes without end.
const maxLine = 4 << 10

// ring stores the last lines of stdout and stderr, in the order of their arrival.
type ring struct {
	mu    sync.Mutex
	limit int
	lines []string // oldest first
}

func (r *ring) add(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lines) == r.limit {
		r.lines = slices.Delete(r.lines, 0, 1)
	}
	r.lines = append(r.lines, line)
}

func (r *ring) last() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

// splitter is an io.Writer that cuts one output into lines. Only the copying goroutine of that output uses it, and after that
// goroutine has ended, the one that waited for it.
type splitter struct {
	line    func(line string)
	partial []byte
}

// Write implements io.Writer; it cannot fail.
func (s *splitter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, more, whole := bytes.Cut(rest, []byte("\n"))
		s.partial = append(s.partial, line[:min(len(line), maxLine-len(s.partial))]...)
		if whole {
			s.flush()
		}
		rest = more
	}
	return len(p), nil
}

// flush ends a line, even if it has no line end.
func (s *splitter) flush() {
	s.line(string(bytes.TrimSuffix(s.partial, []byte("\r"))))
	s.partial = s.partial[:0]
}

// end passes on the last line of a program that did not end it.
func (s *splitter) end() {
	if len(s.partial) > 0 {
		s.flush()
	}
}

// logged returns a writer that passes on to output and, if there is one, to the program's Log.
func (p Program) logged(output io.Writer) io.Writer {
	if p.Log == nil {
		return output
	}
	return tee{output, p.Log}
}

// tee writes to two writers. Errors of the second are ignored: a full disk must not end the program that writes its log there.
type tee struct{ to, log io.Writer }

func (t tee) Write(p []byte) (int, error) {
	_, _ = t.log.Write(p)
	return t.to.Write(p)
}

// parseReady reads a ready line; ok is false for every other line.
func parseReady(line string) (addresses map[string]string, ok bool) {
	var ready struct {
		Ready     string            `json:"ready"`
		Addresses map[string]string `json:"addresses"`
	}
	if json.Unmarshal([]byte(line), &ready) != nil || ready.Ready == "" {
		return nil, false
	}
	return ready.Addresses, true
}
