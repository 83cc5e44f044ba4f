package body

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// event is an Event with copies of its parts; nil and empty differ.
type event struct {
	raw        string
	name, data any
}

func copyOf(e Event) event {
	text := func(b []byte) any {
		if b == nil {
			return nil
		}
		return string(b)
	}
	return event{string(e.Raw), text(e.Name), text(e.Data)}
}

// events feeds chunks and returns what came of it, and what is pending.
func events(limit int, chunks [][]byte) ([]event, string, error) {
	v := Events{Limit: limit}
	var list []event
	for _, c := range chunks {
		if err := v.Feed(c, func(e Event) error {
			list = append(list, copyOf(e))
			return nil
		}); err != nil {
			return list, "", err
		}
	}
	if v.Boundary() != (len(v.Pending()) == 0) {
		panic("Boundary and Pending differ")
	}
	return list, string(v.Pending()), nil
}

func TestEvents(t *testing.T) {
	cases := []struct {
		name, in string
		out      []event
		pending  string
	}{
		{"one", "data: x\n\n", []event{{"data: x\n\n", nil, "x"}}, ""},
		{"two", "data: x\n\ndata: y\n\n", []event{{"data: x\n\n", nil, "x"}, {"data: y\n\n", nil, "y"}}, ""},
		{"no space", "data:x\n\n", []event{{"data:x\n\n", nil, "x"}}, ""},
		{"only one space goes", "data:  x \n\n", []event{{"data:  x \n\n", nil, " x "}}, ""},
		{"named", "event: error\ndata: {}\n\n", []event{{"event: error\ndata: {}\n\n", "error", "{}"}}, ""},
		{"named after its data", "data: {}\nevent: e\n\n", []event{{"data: {}\nevent: e\n\n", "e", "{}"}}, ""},
		{"data of three lines", "data: a\ndata\ndata: c\n\n", []event{{"data: a\ndata\ndata: c\n\n", nil, "a\n\nc"}}, ""},
		{"empty data", "data:\n\n", []event{{"data:\n\n", nil, ""}}, ""},
		{"comment", ": ping\n\n", []event{{": ping\n\n", nil, nil}}, ""},
		{"other fields", "id: 1\nretry: 2\ndatax: 3\ndata: x\n\n", []event{{"id: 1\nretry: 2\ndatax: 3\ndata: x\n\n", nil, "x"}}, ""},
		{"carriage returns and newlines", "event: e\r\ndata: x\r\n\r\ndata: y\r\n\r\n",
			[]event{{"event: e\r\ndata: x\r\n\r\n", "e", "x"}, {"data: y\r\n\r\n", nil, "y"}}, ""},
		{"carriage returns", "data: x\r\rdata: y\r\r", []event{{"data: x\r\r", nil, "x"}, {"data: y\r\r", nil, "y"}}, ""},
		{"carriage returns alone", "data: x\r\r\r", []event{{"data: x\r\r", nil, "x"}, {"\r", nil, nil}}, ""},
		{"mixed", "data: x\n\r\ndata: y\r\n\n", []event{{"data: x\n\r\n", nil, "x"}, {"data: y\r\n\n", nil, "y"}}, ""},
		{"byte order mark", mark + "data: x\n\n" + mark + "data: y\n\n", []event{{mark + "data: x\n\n", nil, "x"}, {mark + "data: y\n\n", nil, nil}}, ""},
		{"blank lines alone", "\n\ndata: x\n\n\n", []event{{"\n", nil, nil}, {"\n", nil, nil}, {"data: x\n\n", nil, "x"}, {"\n", nil, nil}}, ""},
		{"unfinished", "data: x\n\ndata: y\n", []event{{"data: x\n\n", nil, "x"}}, "data: y\n"},
		{"waits for the newline", "data: x\r\n\r", nil, "data: x\r\n\r"},
		{"a long line", "data: " + strings.Repeat("x", 1000) + "\r\n\r\n",
			[]event{{"data: " + strings.Repeat("x", 1000) + "\r\n\r\n", nil, strings.Repeat("x", 1000)}}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for size := 31; size > 0; size -= 3 {
				got, pending, err := events(0, inChunks(c.in, size))
				if err != nil || !slices.Equal(got, c.out) || pending != c.pending {
					t.Errorf("chunks of %d bytes:\n got %q, pending %q, %v\nwant %q, pending %q", size, got, pending, err, c.out, c.pending)
				}
			}
		})
	}
}

func TestEventsLimit(t *testing.T) {
	for _, size := range []int{31, 1, 4} {
		got, _, err := events(12, inChunks("data: 12\n\ndata: 123\n\ndata: 12345\n\n", size))
		if !errors.Is(err, ErrTooLarge) || len(got) != 2 {
			t.Errorf("chunks of %d bytes: %q, %v", size, got, err)
		}
	}
}

func TestEventsStopAtAnError(t *testing.T) {
	boom := errors.New("boom")
	var v Events
	calls := 0
	err := v.Feed([]byte("data: x\n\ndata: y\n\n"), func(Event) error { calls++; return boom })
	if err != boom || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

func TestEventsShareTheChunk(t *testing.T) {
	chunk := []byte("data: x\n\n")
	var v Events
	_ = v.Feed(chunk, func(e Event) error {
		if &e.Data[0] != &chunk[6] || &e.Raw[0] != &chunk[0] {
			t.Error("copied")
		}
		return nil
	})
	if n := testing.AllocsPerRun(10, func() { _ = v.Feed(chunk, func(Event) error { return nil }) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestDone(t *testing.T) {
	for data, want := range map[string]bool{"[DONE]": true, "[DONE] ": true, "{}": false, "[DONE]x": false, "": false} {
		if got := (Event{Data: []byte(data)}).Done(); got != want {
			t.Errorf("%q: %v", data, got)
		}
	}
	for name, want := range map[string]bool{"message_stop": true, "response.completed": true, "response.incomplete": true,
		"message_delta": false, "response.failed": false, "response.output_item.done": false, "error": false} {
		if got := (Event{Name: []byte(name), Data: []byte("{}")}).Done(); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestOpens(t *testing.T) {
	for name, want := range map[string]bool{"response.created": true, "response.queued": true, "response.in_progress": true, "message_start": true, "ping": true,
		"": false, "response.output_item.added": false, "content_block_start": false, "message_delta": false, "response.completed": false, "error": false} {
		if got := (Event{Name: []byte(name), Data: []byte("{}")}).Opens(); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestError(t *testing.T) {
	cases := []struct {
		name, event, data string
		want              bool
	}{
		{"a token", "", `{"choices":[{"text":"x"}]}`, false},
		{"an error", "", `{"error": {"message": "Internal server error", "code": 500}}`, true},
		{"an error as text", "", `{"error":"x"}`, true},
		{"no error", "", `{"error":null,"choices":[]}`, false},
		{"the last of two counts", "", `{"error":{},"error":null}`, false},
		{"the text of a token", "", `{"choices":[{"text":"\"error\": {}"}]}`, false},
		{"an error within", "", `{"response":{"error":{}}}`, false},
		{"a value", "", `{"type":"error"}`, false},
		{"by name", "error", `{}`, true},
		{"by another name", "errors", `{}`, false},
		{"of responses", "response.failed", `{"response":{"error":{}}}`, true},
		{"no JSON", "", `"error"]`, false},
		{"half an error", "", `{"error":{}`, false},
		{"the end", "", `[DONE]`, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := (Event{Name: []byte(c.event), Data: []byte(c.data)}).Error(); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// FuzzEvents: whatever the chunks, the events are the same, and with what is
// pending they are the whole stream.
func FuzzEvents(f *testing.F) {
	for i, in := range []string{
		"data: x\n\n", "event: e\r\ndata: a\r\ndata: b\r\n\r\n", "data: x\r\r\n\rdata\r\r", "\n\r\r\n\n\r", mark + ":c\n\ndata:\n\n", "data: x", "\r", "\r\r\r\n\r\n",
	} {
		f.Add([]byte(in), []byte{byte(i), 1})
	}
	f.Fuzz(func(t *testing.T, in, cuts []byte) {
		whole, wholePending, wholeErr := events(100, split(in, nil))
		for _, c := range [][]byte{cuts, {0}} {
			parts, pending, err := events(100, split(in, c))
			if !reflect.DeepEqual(parts, whole) || pending != wholePending || fmt.Sprint(err) != fmt.Sprint(wholeErr) {
				t.Fatalf("%q\nwhole %q, pending %q, %v\nparts %q, pending %q, %v", in, whole, wholePending, wholeErr, parts, pending, err)
			}
		}
		if wholeErr != nil {
			return
		}
		var all bytes.Buffer
		for _, e := range whole {
			all.WriteString(e.raw)
		}
		if got := all.String() + wholePending; got != string(in) {
			t.Fatalf("%q became %q", in, got)
		}
	})
}
