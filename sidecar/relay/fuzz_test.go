package relay

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// FuzzEventPipe checks that a stream comes out as it went in, byte for byte, whatever it is and however it is cut; where the
// count of cached tokens is corrected, nothing else changes.
func FuzzEventPipe(f *testing.F) {
	const firstEvent, doneEvent = "data: {\"choices\":[{\"text\":\" hel\"}]}\n\n", "data: [DONE]\n\n"
	const errorEvent = `data: {"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}` + "\n\n"
	const usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"prompt_tokens_details\":{\"cached_tokens\":32}}}\n\n"
	for i, stream := range []string{firstEvent + doneEvent, firstEvent + usage + doneEvent, errorEvent, ": ping\n\ndata: {}\r\n\r\ndata:[DONE]\n\n", "data: {\n\n\xff", usage[:40]} {
		f.Add([]byte(stream), uint8(i+1), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, stream []byte, size uint8, corrects bool) {
		out := httptest.NewRecorder()
		c := &Client{Writer: out, Log: slog.New(slog.DiscardHandler)}
		c.Decision.Verdict = pd.Remote
		if corrects {
			c.CorrectCached(7)
		}
		p := &eventPipe{c: c, events: body.Events{Limit: MaxEvent}}
		for rest := stream; len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			if err := p.pass(rest[:n], time.Time{}); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		got := append(out.Body.Bytes(), p.events.Pending()...)
		if !corrects {
			if !bytes.Equal(got, stream) {
				t.Fatalf("%q became %q", stream, got)
			}
			return
		}
		before, after := strings.Split(string(stream), "\n"), strings.Split(string(got), "\n")
		if len(before) != len(after) {
			t.Fatalf("%q became %q", stream, got)
		}
		for i := range before {
			mustDifferInCached(t, before[i], after[i])
		}
	})
}

// mustDifferInCached fails unless a line is the same but for its count of cached tokens. A control character in a text is not
// valid JSON, but correcting the count of such an event does no harm.
func mustDifferInCached(t *testing.T, before, after string) {
	t.Helper()
	if before == after {
		return
	}
	var was, is map[string]any
	bare := func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}
	_, a, _ := strings.Cut(strings.Map(bare, before), ":")
	_, b, _ := strings.Cut(strings.Map(bare, after), ":")
	if json.Unmarshal([]byte(a), &was) != nil || json.Unmarshal([]byte(b), &is) != nil {
		t.Fatalf("%q became %q", before, after)
	}
	for _, document := range []map[string]any{was, is} {
		usage, _ := document["usage"].(map[string]any)
		details, _ := usage["prompt_tokens_details"].(map[string]any)
		delete(details, "cached_tokens")
	}
	if !reflect.DeepEqual(was, is) {
		t.Fatalf("%q became %q", before, after)
	}
}
