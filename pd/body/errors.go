package body

import (
	"errors"
	"fmt"
)

var (
	// ErrTooDeep: more containers inside each other than Limits.Depth.
	ErrTooDeep = errors.New("JSON is nested too deeply")
	// ErrTooLarge: more bytes than Limits.Size or Events.Limit.
	ErrTooLarge = errors.New("body is too large")
	// ErrTooMany: more wanted members than Limits.Members.
	ErrTooMany = errors.New("JSON has too many controlled members")
	// ErrEncoding: the body is not UTF-8. Python's json.loads would read
	// UTF-16 and UTF-32, in which nothing would be found here.
	ErrEncoding = errors.New("JSON is not encoded as UTF-8")
	// ErrHidden: a body that is no JSON, or a form, holds, or may hold, a member that had to go.
	ErrHidden = errors.New("body may hide a controlled member")
)

// SyntaxError tells where a body ceases to be JSON.
type SyntaxError struct {
	Offset int64 // of the byte that does not fit, or the length of a body that ends too soon
	Reason string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("scanning JSON: %s at byte %d", e.Reason, e.Offset)
}

// DuplicateError tells that a member with Want.Once occurs again.
type DuplicateError struct {
	Path   string // of the want
	Offset int64  // of the second key
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("scanning JSON: member %q occurs twice, again at byte %d", e.Path, e.Offset)
}
