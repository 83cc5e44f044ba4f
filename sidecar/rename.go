package sidecar

import (
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/tandem-serving/tandem/pd/body"
)

// rename has an engine's answer carry the model's name that the client asked for, if another model answers.
func (x *exchange) rename(resp *http.Response) {
	names := x.route.Rename
	if names == nil {
		return
	}
	events := isEventStream(resp.Header)
	if !events && !isJSON(resp.Header) {
		return
	}
	if encoded(resp.Header) {
		x.s.warnings.Warn("the answer is compressed, so it keeps the engine's name of the model", "request_id", x.id)
		return
	}
	resp.Body = &renaming{ReadCloser: resp.Body, by: body.NewRenamer(names.Answers, names.Asked, events)}
	resp.Header.Del("Content-Length") // names have lengths of their own
	resp.ContentLength = -1
}

func isJSON(h http.Header) bool {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

// renaming is an answer's body while a Renamer goes over it.
type renaming struct {
	io.ReadCloser
	by    *body.Renamer
	buf   []byte
	parts [][]byte // not yet read
	rest  [][]byte // the unread end of parts
	err   error    // of the source
}

// Read implements io.Reader. It gives what there is, and waits for more only if there is nothing.
func (r *renaming) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.fill(len(p))
	}
	n := 0
	for len(r.rest) > 0 && n < len(p) {
		k := copy(p[n:], r.rest[0])
		n += k
		if r.rest[0] = r.rest[0][k:]; len(r.rest[0]) == 0 {
			r.rest = r.rest[1:]
		}
	}
	return n, nil
}

// fill reads the source once, for a reader of size bytes. Like the reader's, its buffer is small for what comes slowly.
func (r *renaming) fill(size int) {
	if size = min(max(size, waitBuffer), answerBuffer); len(r.buf) < size {
		r.buf = make([]byte, size)
	}
	var n int
	n, r.err = r.ReadCloser.Read(r.buf)
	r.parts = r.by.Feed(r.parts[:0], r.buf[:n])
	if r.err != nil {
		if held := r.by.Close(); len(held) > 0 {
			r.parts = append(r.parts, held)
		}
	}
	r.rest = r.parts
}
