package body

import "io"

// Sentry is a reader for bodies that are not JSON but may contain some, such as a form. It changes nothing. It fails with
// ErrHidden where a wanted name is mentioned, before it has released the bytes that complete the name.
type Sentry struct {
	src  io.Reader
	hint hint
	err  error
}

// NewSentry returns a reader of src that searches for the last names of the wants for which remove returns true, as Mentions
// does.
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
