package transport

import (
	"errors"
	"fmt"
	"io"
	"net/http"
)

// ErrTooLong says that an answer is longer than its reader accepts.
var ErrTooLong = errors.New("the answer is too long")

// ReadCapped reads an answer of at most limit bytes. The error of a longer one wraps ErrTooLong.
func ReadCapped(resp *http.Response, limit int64) ([]byte, error) {
	if resp.ContentLength > limit {
		return nil, tooLong(limit)
	}
	if n := resp.ContentLength; n >= 0 {
		b := make([]byte, n)
		_, err := io.ReadFull(resp.Body, b)
		return b, err
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, tooLong(limit)
	}
	return b, err
}

func tooLong(limit int64) error { return fmt.Errorf("%w: more than %d bytes", ErrTooLong, limit) }
