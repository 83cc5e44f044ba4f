package body

import "io"

// Sentry is a reader for bodies that are no JSON as a whole but may hold some, such as a form: it changes nothing, and fails
// with ErrHidden where a wanted name is mentioned, having released none of the bytes that complete it.
type Sentry struct {
	src  io.Reader
	hint hint
	err  error
}

// NewSentry returns a reader of src that watches for the last names of the wants that remove selects, as Mentions does.
func NewSentry(src io.Reader, t *Table, remove func(want int) bool) *Sentry {
	return &Sentry{src: src, hint: t.hint(remove)}
}

// Read implements io.Reader.
func (s *Sentry) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.src.Read(p)
	if s.hint.feed(p[:n]) {
		n, err = 0, ErrHidden
	}
	s.err = err
	return n, err
}
