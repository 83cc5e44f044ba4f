package body

import (
	"errors"
	"fmt"
)

var (
	// ErrTooDeep is returned for containers nested deeper than Limits.Depth.
	ErrTooDeep = errors.New("JSON is nested too deeply")
	// ErrTooLarge is returned for more bytes than Limits.Size or Events.Limit.
	ErrTooLarge = errors.New("body is too large")
	// ErrTooMany is returned for more wanted members than Limits.Members.
	ErrTooMany = errors.New("JSON has too many controlled members")
	// ErrEncoding is returned for a body that is not UTF-8. Python's json.loads reads UTF-16 and UTF-32, in which a Scanner
	// would find nothing.
	ErrEncoding = errors.New("JSON is not encoded as UTF-8")
	// ErrHidden is returned for a body that is not JSON, or is a form, and may contain a member to remove.
	ErrHidden = errors.New("body may hide a controlled member")
)

// SyntaxError is returned for a body that is not JSON.
type SyntaxError struct {
	Offset int64 // offset of the first wrong byte, or the length of a body that ends too soon
	Reason string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("scanning JSON: %s at byte %d", e.Reason, e.Offset)
}

// DuplicateError is returned for a second occurrence of a member with Want.Once.
type DuplicateError struct {
	Path   string // of the want
	Offset int64  // of the second key
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("scanning JSON: member %q occurs twice, again at byte %d", e.Path, e.Offset)
}
